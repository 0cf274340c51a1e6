# SPDX-License-Identifier: MIT
"""Whatever NumPy can make arrives equal: any dtype, shape, order, slicing, byte order, offset.

NDBUS_EXAMPLES: how many examples of the dearer tests.
"""

import os
import unittest

from support import DEADLINE, DaemonTest, assert_same, np

import ndbus

try:
    import hypothesis
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as npst
except ImportError:
    hypothesis = None

if hypothesis is None or np is None:
    raise SystemExit(77)

CODES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "S3", "U2",
         "V5", "M8[ns]", "M8[25us]", "m8[D]", "M8"]

scalars = st.builds(lambda code, order: np.dtype(code).newbyteorder(order), st.sampled_from(CODES),
                    st.sampled_from("<>"))
fields = st.deferred(lambda: st.tuples(dtypes, st.sampled_from([(), (), (2,), (1, 3)])))
records = st.builds(
    lambda parts, align: np.dtype([(f"f{i}", dtype, shape) for i, (dtype, shape) in enumerate(parts)],
                                  align=align),
    st.lists(fields, min_size=1, max_size=3), st.booleans())
dtypes = st.one_of(scalars, scalars, records)


DEPTH_MAX = 6  # of records in records, on the wire


def depth(dtype):
    return 1 + max(depth(dtype[name].base) for name in dtype.names) if dtype.names else 0


@st.composite
def arrays(draw):
    dtype = draw(st.one_of(scalars, scalars, scalars,
                           records.filter(lambda d: d.itemsize < 400 and depth(d) <= DEPTH_MAX)))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5))
    offset = draw(st.sampled_from([0, 0, 1, 3, 8]))
    count = int(np.prod(shape, dtype=int))
    seed = draw(st.integers(0, 255))
    raw = ((np.arange(offset + count * dtype.itemsize) * 31 + seed) % 251).astype("u1")
    if dtype.kind == "U":
        points = raw[:count * dtype.itemsize // 4].astype(np.dtype("u4").newbyteorder(dtype.byteorder))
        made = np.frombuffer(bytes(offset) + points.tobytes(), dtype, count, offset)
    elif dtype.kind == "b":
        made = np.frombuffer((raw & 1).tobytes(), dtype, count, offset)
    else:
        made = np.frombuffer(raw.tobytes(), dtype, count, offset)
    made = made.reshape(shape, order=draw(st.sampled_from("CF")))
    if made.ndim:
        made = made.transpose(draw(st.permutations(range(made.ndim))))
        made = made[draw(npst.basic_indices(made.shape, max_dims=6, allow_newaxis=True))]
    if draw(st.integers(0, 4)) == 0 and isinstance(made, np.ndarray):
        made = np.broadcast_to(made, (3,) + made.shape)
    return np.asarray(made)


settings = dict(derandomize=True, deadline=None, database=None)
EXAMPLES = int(os.environ.get("NDBUS_EXAMPLES", 60))
FILLER = bytes(1 << 16)  # makes a message large enough for shared memory


class Property(DaemonTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.buses = [ndbus.connect(cls.daemon.unix, no_shm=True), ndbus.connect(cls.daemon.unix),
                     ndbus.connect(cls.daemon.tcp)]
        cls.subs = [bus.subscribe("p", policy="block") for bus in cls.buses]
        cls.objects = cls.buses[1].subscribe("o", objects="pickle")

    @classmethod
    def tearDownClass(cls):
        for bus in cls.buses:
            bus.close()
        super().tearDownClass()

    @hypothesis.settings(max_examples=2 * EXAMPLES, **settings)
    @hypothesis.given(arrays())
    def test_bytes(self, sent):
        assert_same(ndbus.loads(ndbus.dumps(sent)), sent)

    @hypothesis.settings(max_examples=EXAMPLES, **settings)
    @hypothesis.given(st.lists(arrays(), min_size=1, max_size=3))
    def test_bus(self, sent):
        """From each way to each: through sockets, and in shared memory."""
        for bus in self.buses:
            bus.publish("p", sent + [FILLER])
        for sub in self.subs:
            for _ in self.buses:
                got = sub.receive(DEADLINE).arrays
                self.assertEqual(len(got), len(sent) + 1)
                for a, b in zip(got, sent):
                    assert_same(a, b)

    @hypothesis.settings(max_examples=EXAMPLES, **settings)
    @hypothesis.given(st.lists(arrays(), min_size=1, max_size=3))
    def test_objects(self, sent):
        self.buses[0].publish_object("o", sent + [sent[0]])
        got = self.objects.receive(DEADLINE).object()
        for a, b in zip(got, sent):
            assert_same(a, b)
            self.assertEqual(a.flags.writeable, b.flags.writeable)
        self.assertIs(got[0], got[-1])

    @hypothesis.settings(max_examples=2 * EXAMPLES, **settings)
    @hypothesis.given(st.recursive(
        st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.floats(allow_nan=False) |
        st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20))
    def test_meta(self, value):
        self.assertEqual(ndbus.unpack(ndbus.dumps([], {"x": value})).meta, {"x": value})


if __name__ == "__main__":
    unittest.main()
