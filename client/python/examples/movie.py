#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Replays an .npy movie, image by image, from the mapped file. movie.py FILE.npy TOPIC [RATE]

It begins when somebody subscribes. Nothing is lost: a subscriber with policy "block" sets the pace."""

import sys
import time

import numpy as np

import ndbus

path, topic = sys.argv[1:3]
rate = float(sys.argv[3]) if len(sys.argv) > 3 else 0

movie = np.load(path, mmap_mode="r")
with ndbus.connect() as bus:
    bus.wait_subscribers(topic, 1)
    start = time.monotonic()
    for i, image in enumerate(movie):
        bus.publish(topic, image, {"frame": i, "of": len(movie)}, timeout=None)
        if rate:
            time.sleep(max(0, start + (i + 1) / rate - time.monotonic()))
