# SPDX-License-Identifier: MIT
"""What tests of the Python package share: a daemon, and what equal arrays are."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from ndbus_run import Daemon  # noqa: E402

import ndbus  # noqa: E402

# only a hang reaches it
DEADLINE = 60

try:
    import numpy as np
except ImportError:
    np = None

needs_numpy = unittest.skipIf(np is None, "no numpy")


class DaemonTest(unittest.TestCase):
    """A daemon for all tests of a class."""

    options = ()

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*cls.options)
        cls.daemon.start()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__(None, None, None)

    def connect(self, url=None, **options):
        bus = ndbus.connect(url or self.daemon.unix, **options)
        self.addCleanup(bus.close)
        return bus

    def each_way(self):
        """Pairs of buses, over every transport."""
        for name, url in [("unix", self.daemon.unix), ("tcp", self.daemon.tcp)]:
            with self.subTest(name), ndbus.connect(url) as one, ndbus.connect(url) as other:
                yield one, other


def assert_same(got, sent):
    """Equal in dtype, shape and every bit; gaps within records are no elements."""
    assert got.dtype == sent.dtype, (got.dtype, sent.dtype)
    assert got.shape == sent.shape, (got.shape, sent.shape)
    assert bits(got) == bits(sent), (got, sent)


def bits(array):
    if array.dtype.names:
        return [bits(array[name]) for name in array.dtype.names]
    return array.tobytes()
