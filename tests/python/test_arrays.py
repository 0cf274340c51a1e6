# SPDX-License-Identifier: MIT
"""Arrays arrive as they were: T01 to T12, over every transport and through bytes."""

import array
import ctypes
import gc
import mmap
import os
import resource
import signal
import sys
import types
import unittest

from support import DEADLINE, DaemonTest, assert_same, each_way, needs_numpy, np

import ndbus


class Ml:
    """ml_dtypes in miniature: NumPy dtypes that know their names, as far as the package looks."""

    class Dtype:
        kind, byteorder, subdtype, names, fields = "V", "=", None, None, None

        def __init__(self, name, itemsize):
            self.name, self.itemsize = name, itemsize

    def __init__(self, name, data, shape, itemsize):
        self.dtype = self.Dtype(name, itemsize)
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": f"<V{itemsize}",
                                    "data": data}


class Given:
    """Something that has attributes and nothing else."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def raw(dtype, text, shape=None):
    made = np.frombuffer(bytes.fromhex(text), dtype)
    return made if shape is None else made.reshape(shape)


def cases():
    """(name, array) of everything that NumPy can say."""
    yield "T01", raw("<f4", "0000c03f000010c000004040")
    yield "T02", raw("<i4", "000000000300000001000000040000000200000005000000").reshape(
        (2, 3), order="F")
    yield "T03", raw(">f8", "00000000000000003ff00000000000003fd999999999999a4016cccccccccccd")
    yield "T07 bool", raw("?", "010001")
    yield "T07 uint8", raw("u1", "010001")
    yield "T08", raw("<c8", "0000803f00000040000000bf000080c0")
    yield "T09", raw("<M8[ns]", "00bb6610dabfed130000000000000080")
    yield "T10", raw(np.dtype({"names": ["A", "B"], "formats": ["<f4", "<f4"], "offsets": [0, 8],
                               "itemsize": 16}),
                     "0000803f00000000000000400000000000004040000000000000804000000000")
    yield "T11", raw("<f4", "0000e040", ())
    for shape in [(0, 3), (2, 0), (3, 0, 5)]:
        yield f"T12 {shape}", np.zeros(shape, "<f4")
    yield "T12 and T01", raw("<f4", "0000c03f000010c000004040")

    base = np.arange(2 * 3 * 4 * 5, dtype="<i2").reshape(2, 3, 4, 5)
    yield "Fortran", np.asfortranarray(base)
    yield "axes turned", base.transpose(2, 0, 3, 1)
    yield "reversed", base[::-1, :, ::-1]
    yield "every other", base[:, ::2, 1:, ::3]
    yield "broadcast", np.broadcast_to(base[0, 0, 0], (7, 5))
    yield "windows", np.lib.stride_tricks.sliding_window_view(base.ravel(), 8)
    yield "32 dimensions", base.reshape((1,) * 28 + base.shape)
    for dtype in ["i1", "u2", ">u4", "<i8", ">f2", ">c16", "S5", "<U3", ">U3", "V7", "<m8[25us]",
                  ">M8[D]", "M8"]:
        made = np.frombuffer(bytes(range(65, 65 + 2 * 3 * np.dtype(dtype).itemsize))
                             if np.dtype(dtype).kind != "U" else
                             np.arange(65, 65 + 18, dtype=np.dtype(dtype).byteorder + "u4").tobytes(),
                             dtype).reshape(2, 3)
        yield dtype, made
        yield dtype + " Fortran", np.asfortranarray(made)
    inner = np.dtype([("p", "u1"), ("q", ">f8", (2, 3))], align=True)
    yield "nested", np.ones((2, 2), np.dtype([("x", "<f4"), ("in", inner, (3,)), ("t", "M8[s]")]))
    yield "record array", np.rec.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", "<f8")])
    yield "scalar", np.float32(1.5)
    yield "date", np.datetime64("2020-02-29T12")
    yield "big", np.arange(3 << 18, dtype="<f4").reshape(3, 512, 512)


@needs_numpy
class Arrays(DaemonTest):
    @each_way
    def test_cases(self, way):
        sub = way.other.subscribe("arrays/*", policy="block")
        for name, sent in cases():
            way.send("arrays/" + name.replace(" ", "-"), sent)
            array = sub.receive(DEADLINE).arrays[0]
            with self.subTest(name):
                assert_same(array, np.asarray(sent))
                self.assertEqual(array.ctypes.data % 64, 0)

    def test_bytes(self):
        for name, sent in cases():
            with self.subTest(name):
                assert_same(np.asarray(ndbus.loads(ndbus.dumps(sent))), np.asarray(sent))
                assert_same(ndbus.Array(sent).numpy(), np.asarray(sent))

    def test_order_is_kept(self):
        """What is dense in any order of axes is not packed on the way."""
        base = np.arange(24, dtype="<i4").reshape(2, 3, 4)
        for sent in [base.T, base.transpose(1, 0, 2), np.broadcast_to(base, (5, 2, 3, 4))]:
            got = ndbus.loads(ndbus.dumps(sent))
            self.assertEqual(got.strides, sent.strides)
        self.assertLess(len(ndbus.dumps(np.broadcast_to(np.int8(1), 1 << 40))), 512)

    @each_way
    def test_many(self, way):
        sub = way.other.subscribe("many")
        sent = [a for _, a in cases()]
        way.one.publish("many", sent)
        way.one.publish("many", [])
        got = sub.receive(DEADLINE)
        self.assertEqual(len(got.arrays), len(sent))
        for a, b in zip(got.arrays, sent):
            assert_same(np.asarray(a), np.asarray(b))
        self.assertEqual(sub.receive(DEADLINE).arrays, [])

    def test_sources(self):
        """Everything with a buffer or an interface."""
        numbers = array.array("l", [1, -2, 3])
        shared = mmap.mmap(-1, 4096)
        shared[:3] = b"abc"
        view = np.arange(12, dtype="<u2").reshape(3, 4)
        interface = view[::-1, 1:].__array_interface__
        for source, expected in [
            (b"abc", np.frombuffer(b"abc", "u1")),
            (bytearray(b"abc"), np.frombuffer(b"abc", "u1")),
            (memoryview(b"abcdef")[::2], np.frombuffer(b"ace", "u1")),
            (memoryview(numbers), np.array([1, -2, 3])),
            (numbers, np.array([1, -2, 3])),
            (array.array("u", "h\xf6"), np.array(["h", "\xf6"])),
            (shared, np.frombuffer(shared, "u1")),
            ((ctypes.c_int16 * 3)(1, 2, 3), np.array([1, 2, 3], "<i2")),
            (Given(__array_interface__=interface, keep=view), view[::-1, 1:]),
            (Given(__array_interface__={"version": 3, "shape": (2,), "typestr": ">i4",
                                        "data": b"\0\0\0\1\0\0\0\2\0"}), np.array([1, 2], ">i4")),
            (Given(__array_interface__={"version": 3, "shape": (1,), "typestr": "|V6",
                                        "descr": [("a", "<u2"), ("b", ">u4")],
                                        "data": b"\1\0\0\0\0\2", "offset": 0}),
             np.array([(1, 2)], [("a", "<u2"), ("b", ">u4")])),
        ]:
            with self.subTest(repr(source)):
                assert_same(ndbus.loads(ndbus.dumps(source)), expected)

        class Made:
            def __array__(self, dtype=None, copy=None):
                return np.arange(3)

        assert_same(ndbus.loads(ndbus.dumps(Made())), np.arange(3))

    @each_way
    def test_named_dtypes(self, way):
        """T04, T05: what neither NumPy nor the buffer protocol has a name for."""
        for name, text, itemsize, shape in [
            ("bfloat16", "0000803f00404040c0bf203e", 2, (6,)),
            ("float8_e4m3fn", "3c", 1, (1,)),
            ("float8_e5m2", "3e", 1, (1,)),
            ("int4", "0f01", 1, (2,)),
        ]:
            with self.subTest(name), way.other.subscribe("named") as sub:
                way.send("named", Ml(name, bytes.fromhex(text), shape, itemsize))
                message = sub.receive(DEADLINE)
                frame = message.frames[0]
                self.assertEqual((str(frame.dtype), frame.shape), (name, shape))
                self.assertEqual(frame.nbytes, len(text) // 2)
                self.assertEqual(bytes(memoryview_of(frame)), bytes.fromhex(text))
                # without ml_dtypes NumPy has no such thing, and is not told that it is something else
                if "ml_dtypes" not in sys.modules:
                    self.assertIs(message.arrays[0], frame)
                    with self.assertRaisesRegex(ndbus.UnsupportedError, "ml_dtypes"):
                        frame.numpy()
                    with self.assertRaises(BufferError):
                        memoryview(frame)

    def test_ml_dtypes_are_asked(self):
        module = types.ModuleType("ml_dtypes")
        module.float8_e3m4 = np.dtype("V1")
        packed = ndbus.dumps(Ml("float8_e3m4", b"ab", (2,), 1))
        sys.modules["ml_dtypes"] = module
        try:
            self.assertEqual(ndbus.loads(packed).dtype, np.dtype("V1"))
        finally:
            del sys.modules["ml_dtypes"]

    def test_refused(self):
        """T19, and what else cannot be sent; nothing of it reaches anybody."""
        bus = self.connect()
        with bus.subscribe("refused") as sub:
            for bad, error, says in [
                (np.array([1, "a"], object), ndbus.DTypeError, "publish_object"),
                (np.zeros(2, [("a", "O")]), ndbus.DTypeError, "publish_object"),
                (np.ma.masked_array([1, 2], [True, False]), ndbus.DTypeError, "masked"),
                (np.zeros(2, np.longdouble), ndbus.DTypeError, "float128"),
                (np.zeros(2, []), ndbus.DTypeError, "0 fields"),
                ([np.zeros(2), None], TypeError, "NoneType"),
                (3, TypeError, "int is no array"),
                ("text", TypeError, "str is no array"),
                (Given(__array_interface__={"shape": (9,), "typestr": "<i4", "data": b"1234"}),
                 ndbus.ShapeError, "beyond"),
                (Given(__array_interface__={"shape": 3}), ndbus.ShapeError, "shape"),
            ]:
                with self.subTest(repr(bad)), self.assertRaisesRegex(error, says):
                    bus.publish("refused", bad)
            bus.publish("refused", np.zeros(1))
            self.assertEqual(sub.receive(DEADLINE).sequence, 1)

    def test_impossible_shapes(self):
        """T17: each is refused at once, before anything of that size is asked for."""
        bus = self.connect()
        for typestr, shape, strides in [
            ("|u1", (1 << 33, 1 << 33), None), ("<f8", (1 << 62, 4), None), ("|u1", (-1,), None),
            ("|u1", (1 << 63,), None), ("|u1", (1,) * 65, None), ("|u1", (4,), (1 << 62,)),
            ("|u1", (2, 2), (1,)),
        ]:
            said = Given(__array_interface__={"version": 3, "shape": shape, "typestr": typestr,
                                              "strides": strides, "data": (4096, False)})
            for take in (lambda: bus.publish("x", said), lambda: ndbus.dumps(said),
                         lambda: ndbus.dumps([b"", said]), lambda: ndbus.Array(said)):
                with self.subTest((typestr, shape, strides)), self.assertRaises(ndbus.ShapeError):
                    take()

    def test_false_length(self):
        """T16: a header that says more or less than there are bytes."""
        packed = ndbus.dumps(np.zeros((4, 4), "<f4"))
        self.assertEqual(packed.count(b"\xa5bytes\x40"), 1)
        for n in (63, 65):
            with self.assertRaisesRegex(ndbus.LengthError, f"{n}"):
                ndbus.loads(packed.replace(b"\xa5bytes\x40", b"\xa5bytes" + bytes([n])))

    def test_two_subscribers(self):
        """T24: a private copy changes nobody; the shared view is read-only, also by force."""
        bus, one, two = self.connect(), self.connect(), self.connect()
        subs = one.subscribe("two"), two.subscribe("two")
        sent = np.arange(1 << 15, dtype="<i4")
        bus.publish("two", sent)
        bus.flush()
        self.assertEqual(bus.shm_stats.published, 1)
        copied, shared = [sub.receive(DEADLINE) for sub in subs]
        copy, view = copied.own().array, shared.array
        copy[:] = -1
        self.assertTrue((view == sent).all())
        self.assertFalse(view.flags.writeable)
        with self.assertRaises(ValueError):
            view[0] = 1
        with self.assertRaises(ValueError):
            view.flags.writeable = True
        with self.assertRaisesRegex(TypeError, "read-only"):
            memoryview(shared.frames[0])[0] = 1
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            ctypes.memset(view.ctypes.data, 1, 1)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), -signal.SIGSEGV)
        self.assertTrue((view == sent).all())

    def test_writable(self):
        """What came by a stream is the receiver's own; broadcast and unpacked arrays are read-only."""
        bus = self.connect(self.daemon.tcp)
        with bus.subscribe("own") as sub:
            bus.publish("own", [np.zeros(3), np.broadcast_to(np.float32(1), (2, 2))])
            message = sub.receive(DEADLINE)
        message.arrays[0][:] = 5
        self.assertFalse(message.arrays[1].flags.writeable)
        old = message.arrays[1]
        self.assertIs(message.own(), message)
        self.assertTrue(message.arrays[1].flags.writeable)
        message.arrays[1][0, 0] = 7
        self.assertEqual((message.arrays[1].sum(), old.sum()), (10, 4))
        self.assertEqual(message.arrays[0].tolist(), [5, 5, 5])

        got = ndbus.unpack(ndbus.dumps(np.arange(3)))
        self.assertFalse(got.array.flags.writeable)
        self.assertTrue(got.own().array.flags.writeable)

    def test_lifetime(self):
        """Each array keeps its memory, whatever becomes of the message, the others and the bus."""
        bus = self.connect()
        sub = bus.subscribe("lifetime")
        sent = [np.full(1 << 16, i, "<i4") for i in range(3)]
        bus.publish("lifetime", sent)
        message = sub.receive(DEADLINE)
        kept = message.arrays[1][5:]
        view = memoryview(message.frames[2])
        message.finish()
        with self.assertRaisesRegex(ValueError, "finished"):
            message.topic
        del message
        bus.close()
        gc.collect()
        np.zeros(1 << 20).fill(9)
        self.assertTrue((kept == 1).all())
        self.assertTrue((np.asarray(view) == 2).all())

    def test_no_cycles(self):
        bus = self.connect()
        sub = bus.subscribe("cycles")
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                bus.publish("cycles", np.zeros(3), {"a": 1})
                message = sub.receive(DEADLINE)
                message.arrays, message.frames, message.meta
            del message
            self.assertEqual(gc.collect(), 0)
        finally:
            gc.enable()

    def test_dtype(self):
        self.assertEqual(str(ndbus.DType(">f8")), ">float64")
        self.assertEqual(str(ndbus.DType("bfloat16")), "bfloat16")
        self.assertEqual(str(ndbus.DType("M8[25us]")), "datetime64[25us]")
        self.assertEqual(str(ndbus.DType("S7")), "bytes[7]")
        self.assertEqual(ndbus.DType("<f4"), ndbus.DType(np.float32))
        self.assertNotEqual(ndbus.DType("<f4"), ndbus.DType(">f4"))
        self.assertEqual(len({ndbus.DType("u1"), ndbus.DType(np.uint8)}), 1)
        self.assertEqual(ndbus.DType("<f4").numpy(), np.float32)
        self.assertEqual(ndbus.DType("float64").itemsize, 8)
        for bad in ["nonsense", (np.float32, (2,)), object, ">u1x"]:
            with self.assertRaises(TypeError):
                ndbus.DType(bad)
        made = np.asarray(ndbus.Array(np.arange(3)), np.float32)
        self.assertEqual((made.dtype, made.tolist()), (np.float32, [0, 1, 2]))


def memoryview_of(frame):
    """The bytes of a frame whose dtype the buffer protocol cannot say."""
    return (ctypes.c_char * frame.nbytes).from_address(frame.address)


if __name__ == "__main__":
    unittest.main()
