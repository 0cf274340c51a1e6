# SPDX-License-Identifier: MIT
"""What tests of the Python package share: a daemon, the ways to it, and what equal arrays are."""

import functools
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from ndbus_run import Daemon, put  # noqa: E402

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


class Way:
    """Two buses, and what the bytes of a message go through between them."""

    def __init__(self, name, one, other):
        self.name, self.one, self.other = name, one, other

    def send(self, topic, array):
        """One array. Of what may lie in shared memory only large messages do, so there something large
        goes with it."""
        n_shared = self.one.shm_stats.published
        if self.name == "shm":
            self.one.publish(topic, [array, bytes(1 << 16)])
            n_shared += 1
        else:
            self.one.publish(topic, [array])
        assert self.one.shm_stats.published == n_shared, self.one.shm_stats


def each_way(test):
    """The test of a DaemonTest, once for every way that a message can go."""
    @functools.wraps(test)
    def tests(self):
        for name, url, no_shm in [("stream", self.daemon.unix, True), ("shm", self.daemon.unix, False),
                                  ("tcp", self.daemon.tcp, False)]:
            with self.subTest(name), ndbus.connect(url, no_shm=no_shm) as one, \
                    ndbus.connect(url, no_shm=no_shm) as other:
                test(self, Way(name, one, other))
    return tests


def assert_same(got, sent):
    """Equal in dtype, shape and every bit; gaps within records are no elements."""
    assert got.dtype == sent.dtype, (got.dtype, sent.dtype)
    assert got.shape == sent.shape, (got.shape, sent.shape)
    assert bits(got) == bits(sent), (got, sent)


def bits(array):
    if array.dtype.names:
        return [bits(array[name]) for name in array.dtype.names]
    return array.tobytes()
