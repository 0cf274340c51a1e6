# SPDX-License-Identifier: MIT
"""Objects: pickled with their buffers beside the pickle, and never unpickled unasked (T63)."""

import array
import collections
import io
import mmap
import os
import pickle
import tempfile
import unittest
import warnings

from support import DEADLINE, DaemonTest, assert_same, needs_numpy, np

import ndbus

LARGE = 100000


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class Plain:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


class Holder:
    """Hands out a buffer of its own, as Arrow's and pandas' objects do."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return Holder, (pickle.PickleBuffer(self.data),)


class Objects(DaemonTest):
    def send(self, obj, url=None, **options):
        """(what arrives, the message)"""
        with self.connect(url) as one, self.connect(url) as other:
            with other.subscribe("o", objects="pickle") as sub:
                one.publish_object("o", obj, {"n": 1}, **options)
                message = sub.receive(DEADLINE)
                self.assertEqual((message.encoding, message.meta), ("pickle5", {"n": 1}))
                return message.object(), message

    def test_plain(self):
        for obj in [None, 1, "text", [1, (2, {3})], Plain([1, 2]), collections.OrderedDict(a=1),
                    {"x": Plain(None)}, b"small", bytearray(b"small")]:
            for url in (self.daemon.unix, self.daemon.tcp):
                got, message = self.send(obj, url)
                self.assertEqual(got, obj)
                self.assertIs(type(got), type(obj))
                self.assertEqual(len(message.frames), 1)

    def test_large_bytes(self):
        """What the fast pickler puts into its stream goes beside it."""
        data = os.urandom(LARGE)
        for obj in [data, bytearray(data), array.array("H", data), {"a": [data, Plain(data)]}]:
            got, message = self.send(obj)
            self.assertEqual(got, obj)
            self.assertIs(type(got), type(obj))
            self.assertEqual(len(message.frames), 2)
            self.assertLess(message.frames[0].nbytes, 1000)
        a, b = self.send([data, data])[0]
        self.assertIs(a, b)
        shared = mmap.mmap(-1, LARGE)
        shared[:] = data
        got, message = self.send(shared)
        self.assertEqual((type(got), got[:]), (mmap.mmap, data))
        got, message = self.send(Holder(data))
        self.assertEqual((bytes(got.data), got.data.readonly), (data, True))
        self.assertEqual(len(message.frames), 2)

    def test_memoryviews(self):
        """Format, shape and strides; read-only stays read-only and writable writable."""
        data = bytearray(os.urandom(LARGE))
        cast = memoryview(data).cast("B", (100, LARGE // 100))
        views = [memoryview(bytes(data)), memoryview(data), memoryview(data)[5:-7],
                 memoryview(data)[::-3], memoryview(data).cast("l"), memoryview(data).cast("c"),
                 memoryview(data).cast("d")[10::2], cast, cast[::2],
                 memoryview(data)[:10], memoryview(b""), memoryview(array.array("q", range(999)))]
        got, message = self.send(views)
        for a, b in zip(got, views):
            self.assertEqual((a.format, a.shape, a.strides, a.readonly, a.tobytes()),
                             (b.format, b.shape, b.strides, b.readonly, b.tobytes()))
        # most of them are views of one bytearray
        self.assertEqual(len(message.frames), 4)
        got[1][5] = (data[5] + 1) % 256
        self.assertEqual(got[2][0], (data[5] + 1) % 256)

    @needs_numpy
    def test_arrays(self):
        """T63: one pickle frame and one frame a buffer, order kept, equal objects."""
        c = np.arange(10000, dtype="<f8").reshape(100, 100)
        f = np.asfortranarray(c + 1)
        empty = np.zeros((0, 3))
        data = bytes(range(256)) * 20
        for url in (self.daemon.unix, self.daemon.tcp):
            got, message = self.send({"c": c, "f": f, "b": memoryview(data), "e": empty}, url)
            self.assertEqual(list(got), ["c", "f", "b", "e"])
            assert_same(got["c"], c)
            assert_same(got["f"], f)
            assert_same(got["e"], empty)
            self.assertEqual(got["b"], data)
            self.assertTrue(got["f"].flags.f_contiguous and got["c"].flags.c_contiguous)
            self.assertTrue(got["c"].flags.writeable)
            self.assertEqual([frame.nbytes for frame in message.frames[1:]],
                             [c.nbytes, f.nbytes, len(data)])
            self.assertEqual(got["c"].ctypes.data, message.frames[1].address)

    @needs_numpy
    def test_what_pickle_copies(self):
        """Dates, masked, structured, strided and broadcast arrays; matrix, record array, memmap."""
        base = np.arange(40000, dtype="<i4").reshape(200, 200)
        folder = tempfile.TemporaryDirectory(prefix="ndbus-test-")
        self.addCleanup(folder.cleanup)
        mapped = np.memmap(os.path.join(folder.name, "m"), "<i4", "w+", shape=(50, 50))
        mapped[:] = 7
        for name, sent, kept in [
            ("dates", np.arange(10000).astype("M8[s]"), True),
            ("structured", np.ones(5000, [("a", "<f4"), ("b", ">i2", (3,))]), True),
            ("strings", np.full(5000, "text"), True),
            ("big-endian", np.arange(5000, dtype=">f8"), True),
            ("reversed", base[::-1, ::-1], True),
            ("every other", base[:, ::2], True),
            ("mostly gaps", base[::5, ::5], False),
            ("broadcast", np.broadcast_to(base, (5, 200, 200)), True),
            ("memmap", mapped, True),
            ("small", base[0, :5], False),
            ("bool", base > 5, True),
        ]:
            with self.subTest(name):
                got, message = self.send(sent)
                assert_same(got, np.asarray(sent))
                self.assertIs(type(got), np.ndarray)
                self.assertEqual(got.flags.writeable, sent.flags.writeable)
                if kept:
                    self.assertEqual(got.strides, sent.strides)
                    self.assertEqual(len(message.frames), 2)
                self.assertLess(message.frames[0].nbytes, 1500)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that matrices are of the past
            matrix = np.matrix(base)
        for sent in [matrix, np.rec.array([(i, i) for i in range(999)])]:
            got, message = self.send(sent)
            self.assertIs(type(got), type(sent))
            self.assertTrue((got == sent).all())
            self.assertEqual(len(message.frames), 2)
        read_only = base.copy()
        read_only.flags.writeable = False
        self.assertFalse(self.send(read_only)[0].flags.writeable)

        masked = np.ma.masked_array(base, base % 7 == 0, fill_value=-5)
        got, message = self.send(masked)
        self.assertEqual((got.fill_value, got.sum(), type(got)), (-5, masked.sum(), type(masked)))
        self.assertTrue((got.mask == masked.mask).all())
        self.assertEqual(len(message.frames), 3)
        self.assertIs(self.send(np.ma.masked_array(base))[0].mask, np.ma.nomask)

    @needs_numpy
    def test_shared(self):
        """What overlaps overlaps again, whatever comes first."""
        base = np.zeros((100, 100))
        for views in [[base, base[:5], base.T], [base[:5], base], [base[10:60], base[40:90]],
                      [base[:, 0], base], [base, memoryview(base)[3:]], [base.real, base]]:
            got, message = self.send(views)
            self.assertEqual(len(message.frames), 2)
            self.assertTrue(np.shares_memory(np.asarray(got[0]), np.asarray(got[1])))
            for a, b in zip(got, views):
                self.assertEqual((a.shape, a.strides), (b.shape, b.strides))
        got, message = self.send([base, base.copy(), base])
        self.assertEqual(len(message.frames), 3)
        self.assertIs(got[0], got[2])
        self.assertFalse(np.shares_memory(got[0], got[1]))

    @needs_numpy
    def test_ragged(self):
        ragged = np.empty(3, object)
        for i in range(3):
            ragged[i] = np.arange(1000 * (i + 1))
        got, message = self.send(ragged)
        self.assertEqual((got.dtype, got.shape, len(message.frames)), (object, (3,), 4))
        for a, b in zip(got, ragged):
            assert_same(a, b)
        # of plain dtypes, without pickle: a list of frames
        with self.connect() as bus, bus.subscribe("r") as sub:
            bus.publish("r", list(ragged))
            for a, b in zip(sub.receive(DEADLINE).arrays, ragged):
                assert_same(a, b)

    def test_in_band(self):
        obj = {"a": bytes(LARGE), "v": memoryview(b"abc"), "w": memoryview(bytearray(b"abc"))}
        if np is not None:
            obj["n"] = np.arange(1000)
        got, message = self.send(obj, out_of_band=False)
        self.assertEqual(len(message.frames), 1)
        read = pickle.loads(message.frames[0])
        self.assertEqual((read["a"], read["v"], read["w"]), (obj["a"], b"abc", bytearray(b"abc")))
        self.assertEqual(got["v"], b"abc")

    def test_never_unasked(self):
        folder = tempfile.TemporaryDirectory(prefix="ndbus-test-")
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "made")
        bus = self.connect()
        with bus.subscribe("t") as sub, bus.subscribe("t", objects="pickle") as asked:
            bus.publish_object("t", Trap(path))
            message = sub.receive(DEADLINE)
            with self.assertRaisesRegex(ndbus.DeniedError, 'objects="pickle"') as caught:
                message.object()
            self.assertIsInstance(caught.exception, PermissionError)
            message.arrays, message.frames, repr(message), message.meta
            self.assertFalse(os.path.exists(path))
            asked.receive(DEADLINE).object().close()
            self.assertTrue(os.path.exists(path))
            bus.publish("t", b"x")
            with self.assertRaisesRegex(ndbus.UnsupportedError, "no Python object"):
                asked.receive(DEADLINE).object()
            # neither from bytes, where nobody can ask
            self.assertFalse(ndbus.unpack(ndbus.dumps(b"x")).may_unpickle)

    def test_cannot(self):
        bus = self.connect()
        with bus.subscribe("c") as sub:
            for obj in [lambda: 0, io.StringIO, {"x": (i for i in "")}]:
                if obj is io.StringIO:
                    continue
                with self.assertRaises((TypeError, AttributeError, pickle.PicklingError)):
                    bus.publish_object("c", obj)
            with self.assertRaises(TypeError):
                bus.publish_object("c", 1, encoding="mine")
            with self.assertRaises(TimeoutError):
                sub.receive(0)

    def test_broken(self):
        """What a publisher sends instead of a pickle, or with the wrong buffers."""
        bus = self.connect()
        stream = pickle.dumps(pickle.PickleBuffer(bytearray(10)), 5, buffer_callback=[].append)
        with bus.subscribe("b", objects="pickle") as sub:
            for frames in [[], [b"nonsense"], [stream]]:
                bus.publish("b", frames, encoding="pickle5")
                with self.assertRaises((ValueError, pickle.UnpicklingError)):
                    sub.receive(DEADLINE).object()


if __name__ == "__main__":
    unittest.main()
