# SPDX-License-Identifier: MIT
"""Loans: arrays are written in place, and nobody can write once they are published."""

import gc
import subprocess
import sys
import threading
import unittest

from support import DEADLINE, DaemonTest, each_way, ndbus, needs_numpy, np

LARGE = (300, 1000)


@needs_numpy
class Loan(DaemonTest):
    @each_way
    def test_published_at_the_end(self, way):
        bus, sub = way.one, way.other.subscribe("t")
        meta = {"n": 1}
        with bus.loan("t", LARGE, "uint16", meta) as a:
            a[...] = 7
            a[1, 2:5] = [1, 2, 3]
            np.add(a.array[0], 1, out=a.array[3])
            meta["n"] = 2
            with self.assertRaises(TimeoutError):
                sub.receive(0)
        got = sub.receive(DEADLINE)
        expected = np.full(LARGE, 7, np.uint16)
        expected[1, 2:5] = [1, 2, 3]
        expected[3] = 8
        np.testing.assert_array_equal(got.array, expected)
        self.assertEqual((got.array.dtype, got.meta), (np.dtype("uint16"), {"n": 2}))

    def test_in_shared_memory(self):
        """What is written is what is read: nothing is sent by the socket."""
        bus, other = self.connect(), self.connect()
        sub = other.subscribe("t")
        with bus.loan("t", LARGE) as a:
            a[...] = 1.5
        got = sub.receive(DEADLINE)
        self.assertTrue((got.array == 1.5).all())
        self.assertFalse(got.array.flags.writeable)

    def test_through_a_ring(self):
        """Those of a busy publisher take another way: one behind the other all the same."""
        bus, other = self.connect(), self.connect()
        sub = other.subscribe("t")
        for first in (0, 20):  # when the first are flushed, it has been agreed on
            for i in range(first, first + 20):
                with bus.loan("t", (100, 3), "int32", {"n": i}) as a:
                    a[...] = i
                bus.publish("t", b"between")
            bus.flush()
        for i in range(40):
            got = sub.receive(DEADLINE)
            self.assertEqual((got.meta, got.array.tolist()), ({"n": i}, [[i] * 3] * 100))
            self.assertEqual(bytes(sub.receive(DEADLINE).frames[0]), b"between")
        self.assertGreaterEqual(bus.stats()["counters"]["ring_messages"], 20)

    def test_shapes_and_dtypes(self):
        bus = self.connect()
        sub = bus.subscribe("t")
        for shape, dtype in [((), "int8"), (0, "float32"), (5, ">i4"), ([2, 3], "M8[ms]"),
                             ((2,) * 12, "bool"), (4, [("a", "<f4"), ("b", "u1", (3,))])]:
            with bus.loan("t", shape, dtype) as a:
                sent = np.zeros(shape, dtype)
                a[...] = sent
            got = sub.receive(DEADLINE).array
            self.assertEqual((got.shape, got.dtype), (sent.shape, sent.dtype))
            self.assertEqual(got.tobytes(), sent.tobytes())

    def test_options(self):
        bus = self.connect()
        reply = f"$reply/{bus.source}/1"
        with bus.loan("kept", 3, "int8", retain=True, encoding="e", reply=reply) as a:
            a[...] = 4
        bus.flush()
        got = bus.subscribe("kept").receive(DEADLINE)
        self.assertEqual((got.retained, got.encoding, got.reply_topic), (True, "e", reply))

    def test_exception_cancels(self):
        bus = self.connect()
        sub = bus.subscribe("t")
        with self.assertRaises(ZeroDivisionError):
            with bus.loan("t", LARGE) as a:
                a[0, 0] = 1 / 0
        bus.flush()
        with self.assertRaises(TimeoutError):
            sub.receive(0)

    def test_what_could_write_is_refused(self):
        bus = self.connect()
        sub = bus.subscribe("t")
        for keep in [lambda a: a.array, lambda a: a.array[1:].T, lambda a: a.array.view(np.recarray),
                     memoryview, lambda a: memoryview(a.array), np.asarray, lambda a: a.frame,
                     lambda a: a.frame.__dlpack__(), lambda a: np.from_dlpack(a.frame),
                     lambda a: iter(a.array)]:
            with self.assertRaisesRegex(BufferError, "not published.*delete them"):
                with bus.loan("t", LARGE, "float32") as a:
                    a[...] = 1
                    kept = keep(a)
            bus.flush()
            with self.assertRaises(TimeoutError):
                sub.receive(0)
            del kept
            with bus.loan("t", LARGE, "float32") as a:
                a[...] = 1
                kept = keep(a)
                del kept
            self.assertEqual(sub.receive(DEADLINE).array[0, 0], 1)

    def test_what_was_refused_stays_valid(self):
        """Longer than the bus, and not used for anything else."""
        bus = self.connect()
        with self.assertRaises(BufferError):
            with bus.loan("t", LARGE) as a:
                kept = a.array
        kept[...] = 3
        for _ in range(4):
            with bus.loan("t", LARGE) as a:
                a[...] = 4
        self.assertTrue((kept == 3).all())
        bus.close()
        del bus, a
        gc.collect()
        kept[...] = 5
        self.assertTrue((kept == 5).all())

    def test_over(self):
        bus = self.connect()
        with bus.loan("t", 3) as a:
            a[...] = 0
        for use in [lambda: a.array, lambda: a.frame, lambda: memoryview(a), a.__enter__,
                    lambda: a.__exit__(None, None, None), lambda: a.__setitem__(0, 0)]:
            with self.assertRaisesRegex(ValueError, "the loan is over"):
                use()

    def test_refused(self):
        bus = self.connect()
        for shape, dtype, error in [((-1,), "int8", ndbus.Error), ("x", "int8", TypeError),
                                    ((1,) * 65, "int8", ndbus.Error), (3, "O", TypeError),
                                    ((1 << 62, 1 << 62), "int8", ndbus.Error), (1.5, "int8", TypeError),
                                    (1 << 80, "int8", ndbus.ShapeError)]:
            with self.assertRaises(error, msg=(shape, dtype)):
                bus.loan("t", shape, dtype)
        with self.assertRaises(TypeError):
            ndbus.Loan()
        with self.assertRaises(TypeError), bus.loan("t", 3, meta={"x": object()}) as a:
            a[...] = 0
        with self.assertRaises(ndbus.Error), bus.loan("a//b", 3) as a:
            a[...] = 0

    def test_last_array_goes_while_the_bus_is_in_a_call(self):
        bus, other = self.connect(), self.connect()
        sub = bus.subscribe("t")
        with self.assertRaises(BufferError):
            with bus.loan("x", LARGE) as a:
                kept = [a.array]

        def drop():
            kept.clear()  # while the bus waits below
            other.publish("t", b"x")

        thread = threading.Thread(target=drop)
        thread.start()
        self.assertEqual(sub.receive(DEADLINE).topic, "t")
        thread.join()
        with bus.loan("x", LARGE) as a:
            a[...] = 1

    def test_bus_closed_within(self):
        bus = self.connect()
        with self.assertRaisesRegex(ndbus.Error, "closed"):
            with bus.loan("t", LARGE) as a:
                bus.close()
                a[...] = 1


class WithoutNumPy(DaemonTest):
    def test_memoryview(self):
        code = """
import sys
sys.modules["numpy"] = None
import ndbus
bus = ndbus.connect(sys.argv[1])
sub = bus.subscribe("t")
with bus.loan("t", 4, "int16") as a:
    with memoryview(a) as m:
        m[1] = 5
    del m
assert memoryview(sub.receive(60).array)[1] == 5
"""
        subprocess.run([sys.executable, "-W", "ignore", "-c", code, self.daemon.unix], check=True)


if __name__ == "__main__":
    unittest.main()
