"""Arrow scalars, built from their bytes.

`pa.scalar` loads pandas first if it is installed, which takes longer than most reads.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

_PACKERS: Final = {
    kind.id: struct.Struct(code).pack
    for kind, code in (
        (pa.bool_(), "<?"),
        (pa.int8(), "<b"),
        (pa.int16(), "<h"),
        (pa.int32(), "<i"),
        (pa.int64(), "<q"),
        (pa.uint8(), "<B"),
        (pa.uint16(), "<H"),
        (pa.uint32(), "<I"),
        (pa.uint64(), "<Q"),
    )
}
_BOUNDS: Final = struct.Struct("<ii")


def scalar(value: int | str | bytes, kind: pa.DataType) -> pa.Scalar:
    """Return a value as an Arrow scalar of this type: an integer, Boolean, string or binary."""
    if isinstance(value, int):
        buffers = [None, pa.py_buffer(_PACKERS[kind.id](value))]
    else:
        data = value.encode() if isinstance(value, str) else value
        buffers = [None, pa.py_buffer(_BOUNDS.pack(0, len(data))), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, 1, buffers)[0]
