# SPDX-License-Identifier: MIT
"""A message bus for n-dimensional arrays.

Arrays in:

    import ndbus, numpy as np

    bus = ndbus.connect()
    bus.publish("camera/left", np.zeros((480, 640), np.uint16), {"exposure": 0.01})

Arrays out:

    for message in ndbus.connect().subscribe("camera/*"):
        print(message.topic, message.array.mean(), message.meta, message.dropped)

What is sent is anything with a buffer, with __dlpack__, __array_interface__ or __array__: NumPy arrays of
every dtype but object, tensors in host memory, bytes, memoryviews. It is sent from where it lies, and
arrives with its dtype, shape, byte order and order of axes. What arrives are NumPy arrays on the memory
into which they were received (message.arrays), and the same as ndbus.Array (message.frames), which
exports DLPack and the buffer protocol and does not need NumPy:

    tensor = torch.from_dlpack(message.frames[0])

Without a daemon, dumps() and loads(), dump() and load() make self-describing bytes and files of arrays.

Everything that ndbus raises about messages and connections is an ndbus.Error, and also the built-in
exception that fits: TimeoutError, ConnectionError, TypeError, ValueError, BufferError ... A TimeoutError is
a wait that has run out, and never the end of a subscription.

See help(ndbus.Bus), help(ndbus.Subscription), help(ndbus.Message).
"""

import math as _math
import os as _os
import sys as _sys

from . import _ndbus
from ._files import dump, load, loads, records, unpack
from ._ndbus import (Array, Bus, DType, Error, Extension, Loan, Message, ShmStats,
                     Subscription, SubscriptionStats, dumps)

__version__ = _ndbus.version()

UNKNOWN = _math.inf
"""What Message.dropped is when the number is not known, as after a reconnect."""

_CLIENT_BYTES_MAX = 255


def connect(url=None, **options):
    """Connect to a daemon and return the Bus.

    url: "unix:/path" or "tcp://host:port". None: $NDBUS_URL, else the user's socket
    $XDG_RUNTIME_DIR/ndbus/ndbus.sock if it exists, else /run/ndbus/ndbus.sock.
    Options are those of Bus; client, the name that the operator sees, is the program's by default.
    """
    if options.get("client") is None:
        name = _os.path.basename(_sys.argv[0] if _sys.argv else "") or "python"
        options["client"] = (name.encode("utf-8", "replace")[:_CLIENT_BYTES_MAX]
                             .decode("utf-8", "ignore"))
    return Bus(url, **options)


_exceptions = {_name: _value for _name, _value in vars(_ndbus).items()
               if isinstance(_value, type) and issubclass(_value, Error)}
globals().update(_exceptions)

__all__ = ["Array", "Bus", "DType", "Extension", "Loan", "Message", "ShmStats", "Subscription",
           "SubscriptionStats", "UNKNOWN", "connect", "dump", "dumps", "load", "loads", "records", "unpack",
           *_exceptions]
