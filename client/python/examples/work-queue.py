#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A work queue: each task to one worker of a group. work-queue.py work|submit [COUNT]

A task that a worker did not finish, because it died, goes to another one; it may then be done twice."""

import sys

import numpy as np

import ndbus


def work(bus):
    tasks = bus.subscribe("tasks/fft", group="workers", policy="block", window=1)
    for task in tasks:
        with task:  # finished at its end, and not before
            if task.meta.get("stop"):
                break
            spectrum = np.abs(np.fft.rfft(task.array))
            bus.publish("results/fft", spectrum, {"task": task.meta["task"]})
            bus.flush()  # the result is on its way before the task is finished


def submit(bus, count):
    results = bus.subscribe("results/fft", policy="block")
    bus.wait_subscribers("tasks/fft", 1)
    for i in range(count):
        bus.publish("tasks/fft", np.sin(np.arange(1000) * (i + 1) / 10), {"task": i})
    for _ in range(count):
        result = results.receive(timeout=30)
        print("task", result.meta["task"], "peak at", result.array.argmax())
    bus.publish("tasks/fft", [], {"stop": True})


with ndbus.connect() as connected:
    if sys.argv[1] == "work":
        work(connected)
    else:
        submit(connected, int(sys.argv[2]) if len(sys.argv) > 2 else 10)
