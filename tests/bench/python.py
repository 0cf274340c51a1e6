#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The Python package beside pyzmq: arrays from one process to another, through what stands between.

    tests/bench/python.py --build build-bench [--rounds 5] [--sizes 1024,1048576,16777216]

ndbus: publish() -> ndbusd -> receive().array, policy block. pyzmq: send_multipart() of a topic, dtype and
shape as JSON, and the array -> zmq.proxy() in a process -> recv_multipart() and numpy.frombuffer(); from
64 KiB on without copies on both sides. The two take turns, round by round; what is printed are the
medians of microseconds a message, and of the ratio within a round.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

import numpy as np
import zmq

HERE = os.path.dirname(os.path.abspath(__file__))
NO_COPY = 64 << 10
BYTES_AHEAD_MAX = 1 << 30  # pyzmq queues without limit: no more than that in a run


def ndbus_publish(url, size, count):
    import ndbus
    array = np.zeros(size, np.uint8)
    with ndbus.connect(url) as bus:
        bus.wait_subscribers("t", 1)
        for _ in range(count):
            bus.publish("t", array, timeout=None)


def ndbus_run(url, size, count):
    import ndbus
    with ndbus.connect(url) as bus:
        subscription = bus.subscribe("t", policy="block")
        publisher = CONTEXT.Process(target=ndbus_publish, args=(url, size, count))
        publisher.start()
        took = clock(lambda: subscription.receive().array, count)
        publisher.join()
    return took


def zeromq_proxy(front, back):
    context = zmq.Context()
    sockets = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    for s, address in zip(sockets, (front, back)):
        s.set_hwm(0)
        s.bind(address)
    zmq.proxy(*sockets)


def zeromq_publish(front, size, count):
    array = np.zeros(size, np.uint8)
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.set_hwm(0)
    socket.connect(front)
    socket.recv()  # the subscription has come through
    for _ in range(count):
        head = json.dumps({"dtype": str(array.dtype), "shape": array.shape}).encode()
        socket.send_multipart([b"t", head, array], copy=size < NO_COPY)
    socket.close()
    context.term()


def zeromq_run(size, count):
    with tempfile.TemporaryDirectory(prefix="ndbus-bench-") as folder:
        front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
        proxy = CONTEXT.Process(target=zeromq_proxy, args=(front, back))
        proxy.start()
        context = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.set_hwm(0)
        socket.connect(back)
        socket.setsockopt(zmq.SUBSCRIBE, b"t")
        publisher = CONTEXT.Process(target=zeromq_publish, args=(front, size, count))
        publisher.start()

        def receive():
            _, head, frame = socket.recv_multipart(copy=size < NO_COPY)
            head = json.loads(bytes(head))
            data = frame if size < NO_COPY else frame.buffer
            return np.frombuffer(data, head["dtype"]).reshape(head["shape"])

        took = clock(receive, count)
        publisher.join()
        proxy.kill()
        proxy.join()
        context.destroy(0)
    return took


def clock(receive, count):
    """Microseconds a message, from the first to the last."""
    receive()
    start = time.perf_counter()
    for _ in range(count - 1):
        receive()
    return (time.perf_counter() - start) / (count - 1) * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, help="folder of an optimized build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1024,1048576,16777216")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    os.environ.update(NDBUS=f"{build}/client/command/ndbus", NDBUSD=f"{build}/daemon/ndbusd",
                      PYTHONPATH=f"{build}/client/python")
    sys.path[:0] = [f"{build}/client/python", os.path.join(HERE, "..", "support")]
    from ndbus_run import Daemon

    with Daemon() as daemon:
        for size in map(int, arguments.sizes.split(",")):
            count = max(20, min(50000, BYTES_AHEAD_MAX // size))
            rounds = [(ndbus_run(daemon.unix, size, count), zeromq_run(size, count))
                      for _ in range(arguments.rounds)]
            ndbus_us, zeromq_us = (statistics.median(column) for column in zip(*rounds))
            ratio = statistics.median(z / n for n, z in rounds)
            print(f"{size} bytes: ndbus {ndbus_us:.1f} us, pyzmq {zeromq_us:.1f} us a message; "
                  f"ndbus has {ratio:.2f} times its rate", flush=True)


CONTEXT = multiprocessing.get_context("spawn")
if __name__ == "__main__":
    main()
