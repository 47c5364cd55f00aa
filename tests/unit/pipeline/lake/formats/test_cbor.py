from __future__ import annotations

import math
from typing import Any

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.lake.formats.cbor import decode_cbor

# Of RFC 8949, appendix A.
EXAMPLES: list[tuple[str, Any]] = [
    ("00", 0),
    ("17", 23),
    ("1818", 24),
    ("1903e8", 1000),
    ("1bffffffffffffffff", 18446744073709551615),
    ("c249010000000000000000", 18446744073709551616),
    ("c349010000000000000000", -18446744073709551617),
    ("20", -1),
    ("3903e7", -1000),
    ("f93c00", 1.0),
    ("fa47c35000", 100000.0),
    ("fb3ff199999999999a", 1.1),
    ("f97c00", math.inf),
    ("f4", False),
    ("f5", True),
    ("f6", None),
    ("f7", None),
    ("c11a514b67b0", 1363896240),
    ("4401020304", b"\x01\x02\x03\x04"),
    ("62c3bc", "ü"),
    ("83010203", [1, 2, 3]),
    ("8301820203820405", [1, [2, 3], [4, 5]]),
    ("a26161016162820203", {"a": 1, "b": [2, 3]}),
    ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
    ("7f657374726561646d696e67ff", "streaming"),
    ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
    ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
]


@pytest.mark.parametrize(("encoded", "value"), EXAMPLES)
def test_the_examples_of_the_standard_are_read(encoded: str, value: Any) -> None:
    assert decode_cbor(bytes.fromhex(encoded)) == value


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        ("", "index out of range"),
        ("18", "cut short at byte 1"),
        ("0000", "ends at byte 1 of 2"),
        ("ff", "ends at byte 1 of 1"),
        ("1f", "a number without a length"),
        ("1c", "length of kind 28"),
        ("61ff", "can't decode byte"),
        ("81ff", "an end without a beginning"),
        ("9fc1ffff", "an end without a beginning"),
        ("9b00ffffffffffffff", "cut short"),
        ("a18000", "unhashable"),
        ("f8ff", "simple value 24"),
        ("5f6161ff", "a part of another kind"),
        ("81" * 70 + "00", "deeper than 64"),
    ],
)
def test_what_is_no_cbor_is_refused_with_a_reason(encoded: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        decode_cbor(bytes.fromhex(encoded))
