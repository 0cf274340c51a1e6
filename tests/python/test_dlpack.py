# SPDX-License-Identifier: MIT
"""DLPack in both directions: with capsules looked into by ctypes, and with PyTorch where it is."""

import ctypes
import gc
import unittest

from support import DEADLINE, DaemonTest, assert_same, each_way, needs_numpy, np

import ndbus

try:
    import torch
except ImportError:
    torch = None


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
READ_ONLY, IS_COPIED = 1, 2

pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def look(capsule):
    """The structure in a capsule."""
    try:
        return Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
    except ValueError:
        return Managed.from_address(pointer(capsule, b"dltensor"))


class Producer:
    """Hands out a tensor, and notes when it is given back."""

    def __init__(self, data, shape, strides=None, code=0, bits=32, lanes=1, device=1, offset=0,
                 versioned=True, flags=0, major=1):
        self.n_deleted = 0
        self.versioned = versioned
        self.data = ctypes.create_string_buffer(data, max(len(data), 1))
        self.deleter = DELETER(self.delete)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides is not None else None
        tensor = Tensor(ctypes.addressof(self.data), device, 0, len(shape), code, bits, lanes,
                        self.shape, self.strides, offset)
        deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        self.made = (Versioned(major, 0, None, deleter, flags, tensor) if versioned else
                     Managed(tensor, None, deleter))

    def delete(self, _):
        self.n_deleted += 1

    def __dlpack__(self, **options):
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return new_capsule(ctypes.addressof(self.made), name, None)


@needs_numpy
class Import(DaemonTest):
    def test_tensors(self):
        """T21, and T04, T05, T07 by their codes."""
        numbers = np.arange(6, dtype="<i4")
        raw = numbers.tobytes()
        for versioned in (True, False):
            for arguments, expected in [
                (dict(shape=(2, 3)), numbers.reshape(2, 3)),
                (dict(shape=(4,), offset=8), numbers[2:]),
                (dict(shape=(2, 3), strides=(1, 2)), numbers.reshape(3, 2).T),
                (dict(shape=(3,), strides=(2,)), numbers[::2]),
                (dict(shape=()), numbers[0]),
                (dict(shape=(0, 3)), numbers[:0].reshape(0, 3)),
                (dict(shape=(24,), code=6, bits=8), np.frombuffer(raw, "?")),
                (dict(shape=(3,), code=5, bits=64), np.frombuffer(raw, "<c8")),
            ]:
                with self.subTest(arguments, versioned=versioned):
                    producer = Producer(raw, versioned=versioned, **arguments)
                    assert_same(ndbus.loads(ndbus.dumps(producer)), np.asarray(expected))
                    self.assertEqual(producer.n_deleted, 1)
            for code, bits, name in [(4, 16, "bfloat16"), (10, 8, "float8_e4m3fn"),
                                     (12, 8, "float8_e5m2")]:
                array = ndbus.Array(Producer(raw, (4,), code=code, bits=bits, versioned=versioned))
                self.assertEqual(str(array.dtype), name)

    def test_refused(self):
        bus = self.connect()
        with bus.subscribe("x") as sub:
            for arguments, error, says in [
                (dict(device=2), ndbus.DeviceError, "CUDA|device"),
                (dict(lanes=0), ndbus.DTypeError, "lanes"),
                (dict(lanes=4), ndbus.UnsupportedError, "lanes"),
                (dict(code=99), ndbus.DTypeError, "99"),
                (dict(major=2), ndbus.UnsupportedError, "DLPack 2"),
            ]:
                producer = Producer(bytes(24), (6,), **arguments)
                with self.subTest(arguments), self.assertRaisesRegex(error, says):
                    bus.publish("x", producer)
                self.assertEqual(producer.n_deleted, arguments.get("major", 1) == 1)
            with self.assertRaises(TimeoutError):
                sub.receive(0)

    def test_impossible_shapes(self):
        """T17 again."""
        for shape, strides in [((1 << 33, 1 << 33), None), ((-1,), None), ((1,) * 65, None),
                               ((4,), (1 << 62,))]:
            producer = Producer(bytes(24), shape, strides, code=1, bits=8)
            with self.subTest(shape=shape), self.assertRaises(ndbus.ShapeError):
                ndbus.Array(producer)
            self.assertEqual(producer.n_deleted, 1)

    def test_empty(self):
        """Dimensions whose product is no number, beside one that is 0."""
        for shape in [(0, 1 << 62, 1 << 62), (1 << 62, 0, 1 << 62), (1 << 62, 1 << 62, 0)]:
            array = ndbus.Array(Producer(b"", shape, code=1, bits=8))
            self.assertEqual((array.size, array.nbytes, array.shape), (0, 0, shape))
            capsule = array.__dlpack__(max_version=(1, 0))
            self.assertEqual(tuple(look(capsule).tensor.shape[:3]), shape)

    def test_keeps(self):
        producer = Producer(bytes(range(24)), (24,), code=1, bits=8, flags=READ_ONLY)
        array = ndbus.Array(producer)
        self.assertTrue(array.readonly)
        view = array.numpy()
        del array
        self.assertEqual(producer.n_deleted, 0)
        self.assertEqual(view[5], 5)
        del view
        self.assertEqual(producer.n_deleted, 1)


@needs_numpy
class Export(unittest.TestCase):
    def test_versions(self):
        source = np.arange(6, dtype="<f4").reshape(2, 3)
        array = ndbus.Array(source)
        self.assertEqual(array.__dlpack_device__(), (1, 0))
        for options, kind in [({}, Managed), ({"max_version": (0, 8)}, Managed),
                              ({"max_version": None}, Managed), ({"max_version": (1, 0)}, Versioned),
                              ({"max_version": (1, 3)}, Versioned),
                              ({"max_version": (2, 0)}, Versioned)]:
            capsule = array.__dlpack__(**options)
            made = look(capsule)
            self.assertIs(type(made), kind)
            tensor = made.tensor
            self.assertEqual(
                (tensor.data, tensor.device_type, tensor.ndim, tensor.code, tensor.bits,
                 tensor.lanes, tensor.shape[:2], tensor.strides[:2], tensor.byte_offset),
                (source.ctypes.data, 1, 2, 2, 32, 1, [2, 3], [3, 1], 0))
            if kind is Versioned:
                self.assertEqual((made.major, made.flags), (1, 0))
            del capsule

    def test_copy_and_read_only(self):
        source = np.arange(6, dtype="<f4")[::-2]
        source.flags.writeable = False
        array = ndbus.Array(source)
        with self.assertRaisesRegex(BufferError, "read-only"):
            array.__dlpack__()
        made = look(capsule := array.__dlpack__(max_version=(1, 0)))
        self.assertEqual((made.flags, made.tensor.strides[0]), (READ_ONLY, -2))
        made = look(copied := array.__dlpack__(max_version=(1, 0), copy=True))
        self.assertEqual((made.flags, made.tensor.strides[0]), (IS_COPIED, 1))
        self.assertEqual((ctypes.c_float * 3).from_address(made.tensor.data)[:], [5, 3, 1])
        self.assertIs(type(look(old := array.__dlpack__(copy=True))), Managed)
        array.__dlpack__(max_version=(1, 0), copy=False, dl_device=(1, 0), stream=None)
        del capsule, copied, old

    def test_swapped(self):
        """T03: foreign byte order is a swapped copy or an error, never a reinterpretation."""
        array = ndbus.Array(np.array([0, 1, 0.4, 5.7], ">f8"))
        made = look(capsule := array.__dlpack__(max_version=(1, 0)))
        self.assertEqual(made.flags, IS_COPIED)
        self.assertEqual((ctypes.c_double * 4).from_address(made.tensor.data)[:], [0, 1, 0.4, 5.7])
        with self.assertRaisesRegex(BufferError, "big-endian"):
            array.__dlpack__(copy=False)
        made = look(other := ndbus.Array(np.array([1 + 2j], ">c8")).__dlpack__())
        self.assertEqual((ctypes.c_float * 2).from_address(made.tensor.data)[:], [1, 2])
        del capsule, other

    def test_refused(self):
        for array, options, error in [
            (np.zeros(2, "M8[s]"), {}, BufferError),
            (np.zeros(2, [("a", "f4")]), {}, BufferError),
            (np.zeros(2, "U3"), {}, BufferError),
            (np.zeros(2), {"dl_device": (2, 0)}, BufferError),
            (np.zeros(2), {"stream": 1}, BufferError),
            (np.zeros(2), {"copy": 1}, TypeError),
            (np.zeros(2), {"max_version": 1}, TypeError),
            (np.zeros(2, [("a", "f4"), ("b", "i1")])["a"], {"copy": False}, BufferError),
        ]:
            with self.subTest(repr(array), **options), self.assertRaises(error):
                ndbus.Array(array).__dlpack__(**options)
        # strides that are no multiple of the itemsize need a copy
        made = look(capsule := ndbus.Array(np.array([(1, 2), (3, 4)], [("a", "f4"), ("b", "i1")])["a"])
                    .__dlpack__())
        self.assertEqual((ctypes.c_float * 2).from_address(made.tensor.data)[:], [1, 3])
        del capsule

    def test_numpy(self):
        source = np.arange(12).reshape(3, 4)[:, ::2]
        got = np.from_dlpack(ndbus.Array(source))
        self.assertTrue(np.shares_memory(got, source) and (got == source).all())
        del source
        gc.collect()
        self.assertEqual(got[2, 1], 10)


@unittest.skipIf(torch is None, "no torch")
class Torch(DaemonTest):
    def test_of_ours(self):
        tensor = torch.zeros(5)
        self.assertEqual(ndbus.Array(tensor).address, tensor.data_ptr())
        packed = ndbus.dumps(tensor)
        del tensor
        got = torch.from_dlpack(ndbus.unpack(packed).own().frames[0])
        self.assertTrue(torch.equal(got, torch.zeros(5)))

    @each_way
    def test_without_a_copy(self, way):
        sub = way.other.subscribe("torch")
        for dtype in [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64]:
            sent = torch.arange(24).reshape(2, 3, 4).to(dtype).permute(2, 0, 1)
            way.send("torch", sent)
            message = sub.receive(DEADLINE)
            frame = message.frames[0]
            self.assertEqual(str(frame.dtype), str(dtype).replace("torch.", ""))
            if dtype is torch.bool and torch.__version__ < "2":
                continue  # which knows no bool in DLPack
            if frame.readonly:
                # nor, up to now, that memory is read-only
                with self.assertRaises(BufferError):
                    torch.utils.dlpack.from_dlpack(frame.__dlpack__())
                frame = message.own().frames[0]
            got = torch.from_dlpack(frame)
            self.assertEqual(got.data_ptr(), frame.address)
            self.assertTrue(torch.equal(got, sent))
            self.assertEqual((got.dtype, got.stride()), (dtype, sent.stride()))


if __name__ == "__main__":
    unittest.main()
