#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asking a model: request and reply. inference.py serve|ask [COUNT]

Start as many servers as you like: they are a group, and each question goes to one of them."""

import sys

import numpy as np

import ndbus

N_CLASSES = 10


def serve(bus, count):
    model = np.random.default_rng(0).normal(size=(784, N_CLASSES)).astype(np.float32)
    for i, question in enumerate(bus.subscribe("model/digits", group="servers"), 1):
        scores = question.array @ model
        question.reply(scores, {"class": int(scores.argmax())})
        if i == count:
            break


def ask(bus, count):
    bus.wait_subscribers("model/digits", 1)
    for i in range(count):
        image = np.random.default_rng(i).random(784, np.float32)
        answer = bus.request("model/digits", image, timeout=10)
        print("image", i, "is a", answer.meta["class"], "with", answer.array.max())


with ndbus.connect() as connected:
    {"serve": serve, "ask": ask}[sys.argv[1]](connected, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
