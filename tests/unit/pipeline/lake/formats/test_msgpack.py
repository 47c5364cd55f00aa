from __future__ import annotations

from typing import Any

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.lake.formats.msgpack import decode_msgpack

EXAMPLES: list[tuple[str, Any]] = [
    ("7f", 127),
    ("e0", -32),
    ("ccff", 255),
    ("cd0100", 256),
    ("ce00010000", 65536),
    ("cfffffffffffffffff", 18446744073709551615),
    ("d080", -128),
    ("d1ff00", -256),
    ("d2ffff0000", -65536),
    ("d3ffffffff00000000", -4294967296),
    ("ca3fc00000", 1.5),
    ("cb3ff199999999999a", 1.1),
    ("c0", None),
    ("c2", False),
    ("c3", True),
    ("a2c3bc", "ü"),
    ("d90161", "a"),
    ("da000161", "a"),
    ("c40201ff", b"\x01\xff"),
    ("93010203", [1, 2, 3]),
    ("dc000101", [1]),
    ("82a16101a162920203", {"a": 1, "b": [2, 3]}),
    ("de0001a16101", {"a": 1}),
    ("d6ff514b67b0", 1363896240),
    ("d7ff77359400514b67b0", 1363896240.5),
    ("c70cff1dcd65000000000000000001", 1.5),
    ("c70305010203", b"\x01\x02\x03"),
    ("d40501", b"\x01"),
]


@pytest.mark.parametrize(("encoded", "value"), EXAMPLES)
def test_every_kind_is_read(encoded: str, value: Any) -> None:
    assert decode_msgpack(bytes.fromhex(encoded)) == value


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        ("", "index out of range"),
        ("cd01", "cut short at byte 2"),
        ("0101", "ends at byte 1 of 2"),
        ("c1", "byte 0xc1 at 0"),
        ("a1ff", "can't decode byte"),
        ("ddffffffff", "cut short"),
        ("819001", "unhashable"),
        ("91" * 70 + "01", "deeper than 64"),
    ],
)
def test_what_is_no_messagepack_is_refused_with_a_reason(encoded: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        decode_msgpack(bytes.fromhex(encoded))
