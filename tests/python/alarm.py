# SPDX-License-Identifier: MIT
"""Must fail under a sanitizer: so that one that sees nothing in Python is noticed."""

import ctypes
import sys

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
memory = ctypes.c_void_p(libc.malloc(1234))
if sys.argv[1] == "uses after free":
    libc.free(memory)
    libc.memset(memory, 0, 1)
