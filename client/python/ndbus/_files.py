# SPDX-License-Identifier: MIT
"""Arrays as bytes and as files, without a daemon.

A record is one message: a list of arrays and a dict. A file is any number of records, one after another.
"""

import mmap
import os

from . import _ndbus


def dump(arrays, file, meta=None):
    """Write what dumps() would make to a path, or to a file that is open for writing bytes.

    A path is written anew; to put several records into one file, open it and dump() again and again.
    """
    record = memoryview(_ndbus.pack(arrays, meta))
    if hasattr(file, "write"):
        _write_all(file, record)
    else:
        with open(file, "wb") as opened:
            _write_all(opened, record)


def _write_all(file, data):
    """All of it, also to a raw file, which may take less than it is given."""
    while len(data) > 0:
        written = file.write(data)
        data = data[len(data) if written is None else written:]


def unpack(data):
    """The record at the start of bytes-like data as a Message, with arrays, frames and meta.

    Nothing is copied: the arrays lie in data, which they keep alive, and are read-only. own() of the
    message makes them writable by copying.
    """
    return _ndbus.unpack(data)[0]


def _value(message):
    arrays = message.arrays
    return arrays[0] if len(arrays) == 1 and message.encoding != "list" else arrays


def loads(data):
    """What dumps() was given: an array, or a list of arrays, also of one or none.

    unpack() has the meta too, and always a list. Nothing is copied: arrays lie in data and are read-only.
    """
    return _value(unpack(data))


def load(file, mmap=True):
    """What dump() was given, from a path or from a file that is open for reading bytes.

    With mmap the file is mapped rather than read: nothing is read before it is looked at, and pages
    are shared with other programs. The file must not be truncated meanwhile.
    """
    if hasattr(file, "read") and not mmap:
        return loads(file.read())
    return loads(_map(file) if mmap else _read(file))


def records(file, mmap=True):
    """Iterate over all records of a file, as Messages."""
    data = _map(file) if mmap else _read(file)
    at = 0
    while at < len(data):
        try:
            message, at = _ndbus.unpack(data, at)
        except _ndbus.EndedError:  # what is left is an index
            return
        yield message


def _read(file):
    if hasattr(file, "read"):
        return file.read()
    with open(file, "rb") as opened:
        return opened.read()


def _map(file):
    """The bytes from where the file stands to its end; of what cannot be mapped, by reading."""
    if not hasattr(file, "read"):
        with open(file, "rb") as opened:
            return _map(opened)
    try:
        size = os.fstat(file.fileno()).st_size
        at = file.tell()
        if at >= size:
            return b""
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))[at:]
    except (OSError, AttributeError):
        return file.read()
