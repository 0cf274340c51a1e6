#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A viewer that is never behind: of what it was too slow for, it sees the newest. viewer.py [PATTERN [LAST]]"""

import sys

import ndbus

pattern = sys.argv[1] if len(sys.argv) > 1 else "camera/*"
last = int(sys.argv[2]) if len(sys.argv) > 2 else None
SHADES = " .:-=+*#%@"

with ndbus.connect() as bus:
    for message in bus.subscribe(pattern, policy="latest"):
        image = message.array
        for row in image[::40, ::10]:
            print("".join(SHADES[value * len(SHADES) // 256] for value in row))
        print(message.topic, message.meta["frame"], "missed", message.dropped)
        if last is not None and message.meta["frame"] >= last:
            break
