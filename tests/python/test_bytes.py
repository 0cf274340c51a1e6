# SPDX-License-Identifier: MIT
"""Arrays as bytes and files, and meta as msgpack."""

import io
import os
import tempfile
import unittest

from support import DaemonTest, needs_numpy, np

import ndbus


@needs_numpy
class Bytes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ndbus-test-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "a.ndb")

    def test_what_comes_back(self):
        a, b = np.arange(6).reshape(2, 3), np.zeros((), "?")
        self.assertIsInstance(ndbus.dumps(a), bytes)
        self.assertIsInstance(ndbus.loads(ndbus.dumps(a)), np.ndarray)
        got = ndbus.loads(ndbus.dumps([a, b], {"x": 1}))
        self.assertEqual([g.tolist() for g in got], [a.tolist(), b.tolist()])
        self.assertEqual(ndbus.loads(ndbus.dumps([])), [])
        for one in ([a], (a,)):
            got = ndbus.loads(ndbus.dumps(one))
            self.assertIs(type(got), list)
            self.assertEqual([g.tolist() for g in got], [a.tolist()])
        ndbus.dump([b], self.path)
        self.assertEqual([g.tolist() for g in ndbus.load(self.path)], [b.tolist()])
        self.assertEqual(ndbus.unpack(ndbus.dumps([a], {"x": 1})).meta, {"x": 1})

    def test_no_copy(self):
        packed = bytearray(ndbus.dumps(np.arange(6, dtype="u1")))
        got = ndbus.loads(packed)
        packed[packed.rindex(bytes(range(6)))] = 77
        self.assertEqual(got[0], 77)
        with self.assertRaises(BufferError):
            packed.append(0)  # it is being looked at
        del got
        packed.append(0)

    def test_files(self):
        a = np.arange(1000, dtype="<f4").reshape(10, 100)
        ndbus.dump(a, self.path, {"n": 1})
        for mmap in (True, False):
            got = ndbus.load(self.path, mmap=mmap)
            self.assertTrue((got == a).all())
            self.assertFalse(got.flags.writeable)
        self.assertEqual(ndbus.load(self.path).ctypes.data % 64, 0)
        with open(self.path, "wb") as f:
            for i in range(3):
                ndbus.dump([a[i]], f, {"i": i})
        self.assertEqual([(m.meta["i"], m.array[0]) for m in ndbus.records(self.path)],
                         [(0, 0), (1, 100), (2, 200)])
        with open(self.path, "rb") as f:
            self.assertEqual(ndbus.load(f)[0][1], 1)
        memory = io.BytesIO()
        ndbus.dump(a, memory)
        memory.seek(0)
        self.assertTrue((ndbus.load(memory) == a).all())
        with open(self.path, "wb", buffering=0) as f:
            ndbus.dump(a, f)
        self.assertTrue((ndbus.load(self.path) == a).all())

    def test_index(self):
        """What ndbus record puts at the end is no message, wherever it stands."""
        golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "index.hex")
        with open(golden, encoding="utf-8") as f:
            index = bytes.fromhex("".join(line.split(";")[0] for line in f))
        one, two = ndbus.dumps(np.arange(3)), ndbus.dumps(np.arange(4))
        for data, n in ((one + index, 1), (one + index + two + index, 2), (index + one, 1), (index, 0)):
            with open(self.path, "wb") as f:
                f.write(data)
            self.assertEqual(len(list(ndbus.records(self.path))), n)
        with self.assertRaises(ndbus.EndedError):
            ndbus.load(self.path)

    def test_broken(self):
        packed = ndbus.dumps(np.arange(6))
        for n in [0, 10, len(packed) - 1]:
            with self.assertRaises(ndbus.TruncatedError):
                ndbus.loads(packed[:n])
        with self.assertRaises(EOFError):
            ndbus.loads(packed[:-1])
        with self.assertRaises(ndbus.CorruptError):
            ndbus.loads(b"x" * 100)
        with open(self.path, "wb") as f:
            f.write(packed + packed[:-1])
        records = ndbus.records(self.path)
        self.assertEqual(next(records).array[5], 5)
        with self.assertRaises(ndbus.TruncatedError):
            next(records)
        with open(self.path, "wb"):
            pass
        with self.assertRaises(ndbus.TruncatedError):
            ndbus.load(self.path)
        self.assertEqual(list(ndbus.records(self.path)), [])
        with self.assertRaises(TypeError):
            ndbus.loads("text")
        with self.assertRaises(ValueError):
            ndbus.loads(memoryview(packed)[::2])


class Meta(unittest.TestCase):
    def test_round_trip(self):
        for meta in [
            {}, {"a": None, "b": True, "c": False}, {"i": 0, "j": -1, "k": 2**64 - 1, "l": -2**63},
            {"f": 1.5, "g": float("inf")}, {"s": "h\xf6\u65e5", "e": ""},
            {"b": b"\0\xff", "l": [1, [2, {"x": []}]]}, {1: "int key", (1, "t"): 2},
            {"x": ndbus.Extension(5, b"abc")}, {"long": "x" * 70000, "many": list(range(70000))},
        ]:
            got = ndbus.unpack(ndbus.dumps([], meta)).meta
            self.assertEqual(got, meta)
            self.assertEqual(list(map(type, got.values())), list(map(type, meta.values())))

    def test_conversions(self):
        got = ndbus.unpack(ndbus.dumps([], {"t": (1, 2), "b": bytearray(b"x"),
                                            "m": memoryview(b"y")})).meta
        self.assertEqual(got, {"t": [1, 2], "b": b"x", "m": b"y"})
        if np is not None:
            got = ndbus.unpack(ndbus.dumps([], {"i": np.int16(3), "f": np.float32(0.5),
                                                "b": np.bool_(True), "z": np.array(4)})).meta
            self.assertEqual(got, {"i": 3, "f": 0.5, "b": True, "z": 4})
            self.assertIs(got["b"], True)

    def test_refused(self):
        deep = {}
        for _ in range(20):
            deep = {"d": deep}
        for meta, error, says in [
            ([1], TypeError, "must be a dict, not list"),
            ({"x": object()}, TypeError, "object cannot be said"),
            ({"x": 1j}, TypeError, "complex"),
            ({"x": 2**64}, OverflowError, "64 bits"),
            ({"x": -2**63 - 1}, OverflowError, "64 bits"),
            (deep, ValueError, "deeper than 16"),
            ({"x": "\ud800"}, UnicodeEncodeError, "surrogates"),
            ({"x": ndbus.Extension(300, b"")}, ValueError, "300"),
            ({"x": b"x" * (1 << 20)}, ndbus.TooBigError, "1048576"),
        ]:
            with self.subTest(says), self.assertRaisesRegex(error, says):
                ndbus.dumps([], meta)
        endless = {}
        endless["x"] = endless
        with self.assertRaises(ValueError):
            ndbus.dumps([], endless)


if __name__ == "__main__":
    unittest.main()
