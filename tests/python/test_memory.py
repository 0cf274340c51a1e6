# SPDX-License-Identifier: MIT
"""Memory and references stay where they are, however many messages go through."""

import gc
import sys
import tracemalloc
import unittest

from support import DEADLINE, DaemonTest, needs_numpy, np

import ndbus

MANY = 100000


def resident():
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


@needs_numpy
class Memory(DaemonTest):
    def flat(self, once, n, bytes_max=1 << 20):
        """n times, and hardly more blocks, objects or bytes than after the first hundred: free lists of
        Python's grow for a while, a leak grows with every one."""
        for _ in range(100):
            once()
        gc.collect()
        blocks, objects = sys.getallocatedblocks(), len(gc.get_objects())
        before = resident()
        for _ in range(n):
            once()
        gc.collect()
        self.assertLess(sys.getallocatedblocks() - blocks, 100 + n // 4)
        self.assertLess(len(gc.get_objects()) - objects, 20)
        # caches of the allocator are allowed, a leak of as little as 64 bytes a message is not
        self.assertLess(resident() - before, max(bytes_max, 64 * n))

    def test_messages(self):
        bus = self.connect()
        sub = bus.subscribe("m", policy="block")
        sent = np.arange(10.0)
        record = np.zeros(3, [("a", "<f4"), ("b", "M8[ns]")])
        counts = [sys.getrefcount(x) for x in (sent, record)]

        def once():
            bus.publish("m", [sent, record, b"x"], {"i": 1, "l": [1, 2.5]})
            message = sub.receive(DEADLINE)
            assert message.meta["i"] == 1 and len(message.arrays) == 3
            message.frames[0].__dlpack__()

        self.flat(once, MANY)
        self.assertEqual([sys.getrefcount(x) for x in (sent, record)], counts)

    def test_large(self):
        """Frames are recycled."""
        bus = self.connect(self.daemon.tcp)
        sub = bus.subscribe("l", policy="block")
        sent = np.zeros(1 << 18)

        def once():
            bus.publish("l", sent)
            kept = sub.receive(DEADLINE).array
            assert kept[-1] == 0

        self.flat(once, 200, 16 << 20)

    def test_loans(self):
        bus = self.connect()
        sub = bus.subscribe("l", policy="block")

        def once():
            with bus.loan("l", (5, 100), "f4", {"i": 1}) as a:
                a[...] = 1
            sub.receive(DEADLINE)
            try:
                with bus.loan("l", (300, 100), reply="r") as a:
                    kept = a.array
            except BufferError:
                del kept
            try:
                with bus.loan("l", 3) as a:
                    raise KeyError
            except KeyError:
                pass

        self.flat(once, 2000)

    def test_errors(self):
        bus = self.connect()
        sub = bus.subscribe("e")
        bad = [np.zeros(2, object), np.zeros(2, [("a", "f4"), ("b", "O")]), np.zeros(2, "f16"), object()]

        def once():
            for array in bad:
                try:
                    bus.publish("e", [np.zeros(2), array], {"x": 1})
                except TypeError:
                    pass
            for meta in [{"x": object()}, {"x": [1, {2: 2**64}]}]:
                try:
                    ndbus.dumps(b"", meta)
                except (TypeError, OverflowError):
                    pass
            for data in [b"", b"x" * 64, ndbus.dumps(b"abc")[:-1]]:
                try:
                    ndbus.loads(data)
                except ndbus.Error:
                    pass
            try:
                sub.receive(0)
            except TimeoutError:
                pass

        self.flat(once, 2000)

    def test_bytes_and_objects(self):
        bus = self.connect()
        sub = bus.subscribe("o", objects="pickle")
        sent = [np.zeros((100, 100))[::2], memoryview(bytes(10000)), b"x" * 5000, {"a": 1}]

        def once():
            ndbus.loads(ndbus.dumps([np.zeros(3), np.zeros((2, 3)).T], {"a": 1}))
            ndbus.Array(np.zeros(3)).numpy()
            bus.publish_object("o", sent)
            sub.receive(DEADLINE).object()

        self.flat(once, 1500)

    def test_traced(self):
        """Nothing of what Python traces is left of a message."""
        bus = self.connect()
        sub = bus.subscribe("t")

        def once():
            bus.publish("t", np.zeros(5), {"a": "b"})
            message = sub.receive(DEADLINE)
            message.own().arrays, message.topic, message.meta, repr(message)

        for _ in range(10):
            once()
        tracemalloc.start()
        try:
            once()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(1000):
                once()
            self.assertLess(tracemalloc.get_traced_memory()[0] - before, 2000)
        finally:
            tracemalloc.stop()


if __name__ == "__main__":
    unittest.main()
