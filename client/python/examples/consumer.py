#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several streams in one event loop, without a thread. consumer.py [COUNT]"""

import asyncio
import sys

import numpy as np

import ndbus


async def watch(bus, pattern, count):
    seen = 0
    async for message in bus.subscribe(pattern):
        print(pattern, message.topic, message.array.mean())
        seen += 1
        if seen == count:
            break


async def produce(bus, count):
    for i in range(count):
        await bus.publish_async("sensor/temperature", np.full(4, 20.0 + i))
        await bus.publish_async("camera/left", np.full((4, 4), i, np.uint8))


async def main(count):
    with ndbus.connect() as bus, ndbus.connect() as other:
        watchers = [asyncio.create_task(watch(bus, pattern, count))
                    for pattern in ("sensor/*", "camera/*")]
        await asyncio.sleep(0)  # they have subscribed when this returns
        await produce(other, count)
        await asyncio.gather(*watchers)


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
