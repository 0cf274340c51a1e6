# SPDX-License-Identifier: MIT
"""Python objects: a pickle of protocol 5, and every buffer in them as a frame of its own.

Pickle alone copies most buffers into its stream: bytes, memoryviews, dates, arrays with strides, masked
ones. Here all of them go beside it. What overlaps in memory overlaps again on arrival; for that a first
pass notes where everything lies, and only if something overlaps, or has gaps, a second one uses what the
first has learnt. bytes and bytearray cannot be had out of the stream by the fast pickler, which asks
nobody about them; so an object that has large ones is pickled by the slow one.

Pickles run code when they are read. load() does not, unless the subscription was made for it.
"""

import array
import bisect
import io
import mmap
import pickle
import sys

from . import _ndbus

ENCODING = "pickle5"


# -------------------------------------------------------------------------------- what arrives again

class _Memory:
    """A piece of memory that several views may share."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __reduce__(self):
        return _memory, (pickle.PickleBuffer(self.buffer),)


def _memory(buffer):
    return buffer


def _ndarray(cls, memory, dtype, shape, strides, offset, writeable):
    import numpy
    made = numpy.ndarray(shape, dtype, memory, offset, strides)
    if cls is not numpy.ndarray:
        made = made.view(cls)
    if not writeable:
        made.flags.writeable = False
    return made


def _masked(cls, data, mask, fill_value, hard_mask):
    import numpy
    made = cls(data, mask=numpy.ma.nomask if mask is None else mask, copy=False,
               hard_mask=hard_mask)
    made._fill_value = fill_value
    return made


def _memoryview(memory, format, itemsize, shape, strides, offset, readonly):
    made = memoryview(_ndbus.shaped(memory, format, itemsize, shape, strides, offset))
    return made.toreadonly() if readonly else made


def _array(typecode, memory):
    made = array.array(typecode)
    made.frombytes(memory)
    return made


def _mmap(memory):
    made = mmap.mmap(-1, len(memory))
    made[:] = memory
    return made


# -------------------------------------------------------------------------------------- sending

class _Places:
    """Where in memory the buffers of an object lie."""

    def __init__(self):
        self.pieces = {}  # (low, high): bytes of the elements of all that lie just there
        self.merged = []  # (low, high, is_dense), in order, without overlap

    def add(self, low, high, nbytes):
        self.pieces[low, high] = self.pieces.get((low, high), 0) + nbytes

    def merge(self):
        """Whether another pass would do better: something overlaps, or is mostly gaps."""
        merged = []
        for (low, high), nbytes in sorted(self.pieces.items()):
            if merged and low < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], high)
                merged[-1][2] += nbytes
            else:
                merged.append([low, high, nbytes])
        self.merged = [(low, high, 2 * nbytes >= high - low) for low, high, nbytes in merged]
        return any((low, high) not in self.pieces or not is_dense
                   for low, high, is_dense in self.merged) or len(self.merged) < len(self.pieces)

    def find(self, low, high):
        """The piece that it belongs to; in the first pass it is one by itself."""
        i = bisect.bisect_right(self.merged, (low, sys.maxsize)) - 1
        if i >= 0 and high <= self.merged[i][1]:
            return self.merged[i]
        return low, high, True


class _Reducers:
    """What both picklers do about objects with buffers."""

    def start(self, places):
        self.places = places
        self.memories = {}  # (low, high): _Memory
        self.kept = []  # whose memory must not go before the message is sent

    def piece(self, low, high, owner):
        memory = self.memories.get((low, high))
        if memory is None:
            memory = self.memories[low, high] = _Memory(_ndbus.memory(low, high - low, owner))
            self.kept.append(owner)
        return memory

    def lay(self, address, itemsize, shape, strides, owner):
        """(memory, offset) for a view; None for one that is better packed."""
        low, high = address, address + itemsize
        count = 1
        for n, stride in zip(shape, strides):
            count *= n
            if stride < 0:
                low += (n - 1) * stride
            else:
                high += (n - 1) * stride
        if count == 0:
            return self.piece(address, address, owner), 0
        self.places.add(low, high, count * itemsize)
        at, end, is_dense = self.places.find(low, high)
        if not is_dense:
            return None
        return self.piece(at, end, owner), address - at

    def reducer_override(self, obj):
        if isinstance(obj, memoryview):
            return self.reduce_memoryview(obj)
        if isinstance(obj, array.array):
            return _array, (obj.typecode, self.flat(obj))
        if isinstance(obj, mmap.mmap):
            return _mmap, (self.flat(obj),)
        numpy = sys.modules.get("numpy")  # without it there are none of its arrays
        if numpy is not None and isinstance(obj, numpy.ndarray) and not obj.dtype.hasobject:
            return self.reduce_ndarray(numpy, obj)
        return NotImplemented

    def flat(self, obj):
        """The memory of something contiguous."""
        address, _, itemsize, shape, strides, _ = _ndbus.describe(obj)
        return self.lay(address, itemsize, shape, strides, obj)[0]

    def reduce_memoryview(self, view):
        address, format, itemsize, shape, strides, readonly = _ndbus.describe(view)
        memory, offset = (self.lay(address, itemsize, shape, strides, view) or
                          self.whole(address, itemsize, shape, strides, view))
        return _memoryview, (memory, format, itemsize, shape, strides, offset, readonly)

    def whole(self, address, itemsize, shape, strides, owner):
        """Gaps and all: a memoryview's strides are part of what it is."""
        low = address + sum((n - 1) * s for n, s in zip(shape, strides) if s < 0)
        high = address + itemsize + sum((n - 1) * s for n, s in zip(shape, strides) if s > 0)
        return self.piece(low, high, owner), address - low

    def reduce_ndarray(self, numpy, obj):
        cls = type(obj)
        if cls is numpy.ma.MaskedArray:
            return _masked, (cls, numpy.asarray(obj.data),
                             None if obj.mask is numpy.ma.nomask else numpy.asarray(obj.mask),
                             obj._fill_value, obj.hardmask)
        if cls is numpy.memmap:
            cls = numpy.ndarray  # where it arrives there is no such file
        if cls not in (numpy.ndarray, numpy.matrix, numpy.recarray):
            return NotImplemented
        laid = self.lay(obj.__array_interface__["data"][0], obj.itemsize, obj.shape, obj.strides, obj)
        writeable = obj.flags.writeable
        if laid is None:
            obj = obj.copy()  # in C order, without gaps
            low = obj.__array_interface__["data"][0]
            laid = self.piece(low, low + obj.nbytes, obj), 0
        return _ndarray, (cls, laid[0], obj.dtype, obj.shape, obj.strides, laid[1], writeable)


class _FastPickler(_Reducers, pickle.Pickler):
    persistent_id = _ndbus.has_no_large


class _SlowPickler(_Reducers, pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, obj):
        if len(obj) < _ndbus.LARGE:
            return pickle._Pickler.dispatch[type(obj)](self, obj)
        return self.save_reduce(type(obj), (self.flat(obj),), obj=obj)

    dispatch[bytes] = dispatch[bytearray] = save_bytes


def _dump(obj):
    """The pickle, its buffers, and what must be kept until they are sent."""
    pickler_class = _FastPickler
    places = _Places()
    is_second = False
    while True:
        stream, buffers = io.BytesIO(), []

        def take(buffer):
            raw = buffer.raw()
            if len(raw) < _ndbus.LARGE:
                return True  # in band
            buffers.append(raw)
            return False

        pickler = pickler_class(stream, 5, buffer_callback=take)
        pickler.start(places)
        try:
            pickler.dump(obj)
        except LookupError:
            if pickler_class is _SlowPickler:
                raise
            pickler_class, places = _SlowPickler, _Places()
            continue
        if is_second or not places.merge():
            return stream.getbuffer(), buffers, pickler.kept
        is_second = True


class _InBandPickler(pickle.Pickler):
    """Reads everywhere; what pickle refuses goes as bytes."""

    def reducer_override(self, obj):
        if isinstance(obj, (memoryview, mmap.mmap)):
            return (bytes if isinstance(obj, memoryview) and obj.readonly else bytearray,
                    (bytes(memoryview(obj)),))
        return NotImplemented


def publish(bus, topic, obj, meta=None, *, out_of_band=True, **options):
    if "encoding" in options:
        raise TypeError("publish_object() sets the encoding itself")
    if out_of_band:
        stream, buffers, kept = _dump(obj)
    else:
        file = io.BytesIO()
        _InBandPickler(file, 5).dump(obj)
        stream, buffers, kept = file.getbuffer(), [], None
    bus.publish(topic, [stream, *buffers], meta, encoding=ENCODING, **options)
    del kept


def load(message):
    if message.encoding != ENCODING:
        raise _ndbus.UnsupportedError(
            f"the message on {message.topic} holds no Python object: its encoding is "
            f"{message.encoding!r}, not {ENCODING!r}")
    if not message.may_unpickle:
        raise _ndbus.DeniedError(
            "unpickling runs code that the publisher chose, so it must be asked for: "
            'subscribe(..., objects="pickle"), if every publisher is trusted')
    # shared memory may change under the unpickler, and what was writable is to be so again
    if any(frame.readonly for frame in message.frames):
        message.own()
    stream, *buffers = message.frames
    return pickle.loads(stream, buffers=map(memoryview, buffers))
