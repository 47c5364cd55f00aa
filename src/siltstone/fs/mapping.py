"""Shared maps of files without a descriptor.

The maps of the standard library keep a copy of the descriptor until the last view is released: a
store with many open segments would run out of descriptors. A map of this module is only the mapped
memory. It is unmapped when its last view is released.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Final

_READ: Final = 1
_WRITE: Final = 2
_SHARED: Final = 1
_FAILED: Final = ctypes.c_void_p(-1).value

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_MMAP: Final = _LIBC.mmap
_MMAP.restype = ctypes.c_void_p
_MMAP.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_MUNMAP: Final = _LIBC.munmap
_MUNMAP.restype = ctypes.c_int
_MUNMAP.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def map_shared(descriptor: int, size: int, *, writable: bool) -> memoryview:
    """Map the first bytes of an open file. Raises: OSError."""
    protection = _READ | _WRITE if writable else _READ
    address = _MMAP(None, size, protection, _SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, "cannot map the file")
    array = (ctypes.c_ubyte * size).from_address(address)
    ending = weakref.finalize(array, _MUNMAP, address, size)
    # Threads may still read while the interpreter exits. The operating system removes the map.
    ending.atexit = False
    view = memoryview(array).cast("B")
    return view if writable else view.toreadonly()
