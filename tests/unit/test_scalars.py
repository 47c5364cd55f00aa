from __future__ import annotations

import pyarrow as pa
import pytest

from siltstone.scalars import scalar


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, pa.bool_()),
        (False, pa.bool_()),
        (-128, pa.int8()),
        (-32_768, pa.int16()),
        (2**31 - 1, pa.int32()),
        (-(2**63), pa.int64()),
        (255, pa.uint8()),
        (65_535, pa.uint16()),
        (2**32 - 1, pa.uint32()),
        (2**64 - 1, pa.uint64()),
        ("", pa.string()),
        ("größer", pa.string()),
        (b"", pa.binary()),
        (b"\x00\xff", pa.binary()),
    ],
)
def test_a_value_is_what_arrow_makes_of_it(value: int | str | bytes, kind: pa.DataType) -> None:
    made = scalar(value, kind)
    assert made.type == kind
    assert made.equals(pa.scalar(value, kind))
    assert made.as_py() == value
