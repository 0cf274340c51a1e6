#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Weights for whoever comes: the trainer publishes each version once, retained. weights.py [train|use]

A worker that starts later gets the current version at once; a running one gets each new one."""

import sys

import numpy as np

import ndbus

NAMES = ["layer1/weight", "layer1/bias", "layer2/weight"]
SHAPES = [(784, 100), (100,), (100, 10)]


def train(bus):
    weights = [np.zeros(shape, np.float32) for shape in SHAPES]
    for version in range(1, 4):
        for array in weights:
            array += 1  # that was the training
        bus.publish("model/weights", weights, {"version": version, "names": NAMES}, retain=True)
    bus.flush()


def use(bus):
    message = bus.subscribe("model/weights", policy="latest").receive(timeout=10)
    weights = dict(zip(message.meta["names"], message.arrays))
    print("version", message.meta["version"], {name: a.shape for name, a in weights.items()})
    print("a prediction:", (np.ones(784, np.float32) @ weights["layer1/weight"])[:3])


with ndbus.connect() as connected:
    {"train": train, "use": use}[sys.argv[1] if len(sys.argv) > 1 else "use"](connected)
