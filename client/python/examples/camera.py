#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A camera: publishes images, and does nothing while nobody looks. camera.py [TOPIC [COUNT]]"""

import sys

import numpy as np

import ndbus

topic = sys.argv[1] if len(sys.argv) > 1 else "camera/left"
count = int(sys.argv[2]) if len(sys.argv) > 2 else 100

y, x = np.mgrid[:480, :640]
with ndbus.connect() as bus:
    bus.wait_subscribers(topic, 1)
    for i in range(count):
        image = (127 + 120 * np.sin((x + y) / 20 + i / 10)).astype(np.uint8)
        bus.publish(topic, image, {"frame": i, "exposure": 0.01}, if_wanted=True)
