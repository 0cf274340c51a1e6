#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The Python package beside pyzmq and distributed.comm: arrays from one process to another.

    tests/bench/python.py --build build-bench [--rounds 5] [--sizes 1024,1048576,16777216]

ndbus: publish(), or a loan -> ndbusd -> receive().array, policy block. pyzmq: send_multipart() of a topic,
dtype and shape as JSON, and the array -> zmq.proxy() in a process -> recv_multipart() and
numpy.frombuffer(); from 64 KiB on without copies on both sides. distributed: Comm.write() of
to_serialize(array) -> Comm.read(), without anything between.

"same" sends one array again and again and so measures the way alone; "filled" writes every array before
it is sent, as a producer does: into the loan, into one array that is published, into a new array for
pyzmq, which reads it after send_multipart() has returned, and into one array for distributed.

All take turns, round by round; printed are medians of microseconds a message, and of ratios within a round.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

import numpy as np
import zmq

try:
    import dask
    from distributed.comm import connect, listen
    from distributed.protocol import to_serialize
except ImportError:
    dask = None

HERE = os.path.dirname(os.path.abspath(__file__))
NO_COPY = 64 << 10
DISTRIBUTED_MIN = 1 << 20  # for tasks' results, not for messages: small ones tell nothing
BYTES_AHEAD_MAX = 3 << 30  # pyzmq queues without limit: no more than that in a run


def clock(receive, count):
    """Microseconds a message. The first third, for which memory is made, is not counted."""
    n_warm = count // 3
    for _ in range(n_warm):
        receive()
    start = time.perf_counter()
    for _ in range(count - n_warm):
        receive()
    return (time.perf_counter() - start) / (count - n_warm) * 1e6


# --------------------------------------------------------------------------------------------- ndbus

def ndbus_publish(url, is_loaned, no_shm, size, count, is_filled):
    import ndbus
    array = np.zeros(size, np.uint8)
    with ndbus.connect(url, no_shm=no_shm) as bus:
        bus.wait_subscribers("t", 1)
        for i in range(count):
            if is_loaned:
                with bus.loan("t", size, np.uint8, timeout=None) as a:
                    if is_filled:
                        a[...] = i & 255
                continue
            if is_filled:
                array.fill(i & 255)
            bus.publish("t", array, timeout=None)
        assert is_loaned or no_shm or size < NO_COPY or not url.startswith("unix:") or \
            bus.shm_stats.published == count, bus.shm_stats


def ndbus_run(url, is_loaned, no_shm, size, count, is_filled):
    import ndbus
    with ndbus.connect(url, no_shm=no_shm) as bus:
        subscription = bus.subscribe("t", policy="block")
        publisher = CONTEXT.Process(target=ndbus_publish,
                                    args=(url, is_loaned, no_shm, size, count, is_filled))
        publisher.start()
        took = clock(lambda: subscription.receive().array, count)
        publisher.join()
    return took


# --------------------------------------------------------------------------------------------- pyzmq

def zeromq_proxy(front, back):
    context = zmq.Context()
    sockets = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    for s, address in zip(sockets, (front, back)):
        s.set_hwm(0)
        s.bind(address)
    zmq.proxy(*sockets)


def zeromq_publish(front, size, count, is_filled):
    array = np.zeros(size, np.uint8)
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.set_hwm(0)
    socket.connect(front)
    socket.recv()  # the subscription has come through
    for i in range(count):
        if is_filled:
            array = np.full(size, i & 255, np.uint8)
        head = json.dumps({"dtype": str(array.dtype), "shape": array.shape}).encode()
        socket.send_multipart([b"t", head, array], copy=size < NO_COPY)
    socket.close()
    context.term()


def zeromq_run(size, count, is_filled):
    with tempfile.TemporaryDirectory(prefix="ndbus-bench-") as folder:
        front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
        proxy = CONTEXT.Process(target=zeromq_proxy, args=(front, back))
        proxy.start()
        context = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.set_hwm(0)
        socket.connect(back)
        socket.setsockopt(zmq.SUBSCRIBE, b"t")
        publisher = CONTEXT.Process(target=zeromq_publish, args=(front, size, count, is_filled))
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


# --------------------------------------------------------------------------------------- distributed

def distributed_publish(address, size, count, is_filled):
    async def main():
        array = np.zeros(size, np.uint8)
        comm = await connect(address)
        for i in range(count):
            if is_filled:
                array.fill(i & 255)
            await comm.write({"t": to_serialize(array)})
        await comm.read()  # until the other end has all
        await comm.close()

    dask.config.set({"distributed.comm.compression": None})
    asyncio.run(main())


def distributed_run(size, count, is_filled):
    async def main():
        done = asyncio.get_running_loop().create_future()

        async def receive(comm):
            for i in range(count):
                if i == 1:
                    start = time.perf_counter()
                array = (await comm.read())["t"]
            done.set_result((time.perf_counter() - start) / (count - 1) * 1e6)
            assert array.nbytes == size
            await comm.write("done")
            await comm.close()

        async with listen("tcp://127.0.0.1:0", receive) as listener:
            publisher = CONTEXT.Process(target=distributed_publish,
                                        args=(listener.contact_address, size, count, is_filled))
            publisher.start()
            took = await done
            await asyncio.get_running_loop().run_in_executor(None, publisher.join)
            return took

    dask.config.set({"distributed.comm.compression": None})
    return asyncio.run(main())


# ------------------------------------------------------------------------------------------- the report

PAIRS = [("copied", "pyzmq"), ("loaned", "pyzmq"), ("socket", "pyzmq"),
         ("tcp", "distributed"), ("copied", "distributed"), ("loaned", "distributed")]


def systems(daemon, size):
    """Name to what runs it once."""
    rows = {
        "copied": lambda *case: ndbus_run(daemon.unix, False, False, *case),
        "loaned": lambda *case: ndbus_run(daemon.unix, True, False, *case),
        "socket": lambda *case: ndbus_run(daemon.unix, False, True, *case),
        "tcp": lambda *case: ndbus_run(daemon.tcp, False, False, *case),
        "pyzmq": zeromq_run,
        "distributed": distributed_run,
    }
    if dask is None or size < DISTRIBUTED_MIN:
        del rows["distributed"]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, help="folder of an optimized build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1024,1048576,16777216")
    parser.add_argument("--megabytes", type=int, default=BYTES_AHEAD_MAX >> 20, help="of a run, at most")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    os.environ.update(NDBUS=f"{build}/client/command/ndbus", NDBUSD=f"{build}/daemon/ndbusd",
                      PYTHONPATH=f"{build}/client/python")
    sys.path[:0] = [f"{build}/client/python", os.path.join(HERE, "..", "support")]
    from ndbus_run import Daemon

    if dask is None:
        print("distributed is skipped: it is not installed (python3-distributed)")
    with Daemon() as daemon:
        for size in map(int, arguments.sizes.split(",")):
            count = max(20, min(50000, (arguments.megabytes << 20) // size))
            rows = systems(daemon, size)
            for case, is_filled in (("same", False), ("filled", True)):
                rounds = [{name: run(size, count, is_filled) for name, run in rows.items()}
                          for _ in range(arguments.rounds)]
                times = ", ".join(f"{name} {statistics.median(r[name] for r in rounds):.1f}" for name in rows)
                print(f"{size} bytes, {case}: us a message: {times}")
                for ours, other in PAIRS:
                    if other in rows:
                        ratio = statistics.median(r[other] / r[ours] for r in rounds)
                        print(f"    {ours} / {other}: {ratio:.2f} times its rate", flush=True)


CONTEXT = multiprocessing.get_context("spawn")
if __name__ == "__main__":
    main()
