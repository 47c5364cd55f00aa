"""A payload has one answer, whatever stands beside it: the parser's answer to it alone."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.pipeline.lake.fields import KINDS, Field
from siltstone.pipeline.lake.payloads import DRIFTS, RESCUED, Drift, decode_rows
from siltstone.scan.columns.payloads import decode_payload

LEAVES: dict[str, pa.DataType] = {
    "decimal": pa.decimal128(10, 2),
    "double": pa.float64(),
    "float": pa.float32(),
    "bigint": pa.int64(),
    "byte": pa.int8(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array": pa.list_(pa.decimal128(10, 2)),
    "object": pa.struct([("a", pa.float64()), ("b", pa.list_(pa.int64()))]),
    "map": pa.map_(pa.string(), pa.float64()),
    "map of text": pa.map_(pa.string(), pa.string()),
    "list of maps": pa.list_(pa.map_(pa.string(), pa.decimal128(10, 2))),
    "text inside": pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))]),
}
VALUES = [
    *("null", "true", "false", "0", "-0", "1", "7.25", "1.255", "300", "1e2", "1e400", "-1e-400"),
    *("NaN", "Infinity", "-Infinity", "Inf", "-Inf", "nan", "None", "01", "+1", ".5", "1."),
    *(str(1 << 63), "9" * 30, "9" * 5_000, '""', '"x"', '"offline"', '"7.25"', '" 7.25"', '"1e2"'),
    *('"NaN"', '"e"', '"2026-01-31"', '"2026-01-31T12:00:00Z"', '"2026-13-31"', '"20x6-01-31"'),
    *('"٢٠٢٦-01-31"', '"\\ud800"', '"\\u00e9"', '"\x01"', '"a\nb"', "[]", "[1]", '["x"]', "[null]"),
    *(
        "[1, true]",
        "{}",
        '{"a": 1}',
        '{"a": "x"}',
        '{"a": 1, "a": 2}',
        '{"b": [1, 2.5]}',
        "[" * 600,
    ),
    "[" * 600 + "]" * 600,
]
WHOLE = [
    *(b"", b"{}", b" {} ", b"{", b"}", b"[1]", b"offline", b'{"p": 1', b'{"p": 1} {"p": 2}'),
    *(b'{"p": 1}\n{"p": 2}', b'{"p":"}', b'{", "p": 1}', b"{\xff}", b'{"p": "\xff"}', b"{{}}"),
    b'{"p": 1,}',
]
values = st.sampled_from(VALUES) | st.decimals(-999, 999, places=2).map(str)
names = st.sampled_from(["p", "p", "p", "q", "\\u0070", ""])
members = st.tuples(names, values).map(lambda pair: f'"{pair[0]}": {pair[1]}')
objects = st.lists(members, max_size=3).map(lambda parts: ("{" + ", ".join(parts) + "}").encode())
payloads = st.lists(objects | st.sampled_from(WHOLE), min_size=1, max_size=12)


def shown(array: pa.Array) -> list[str]:
    """Return values such that NaN is NaN, and 1 is not 1.0."""
    return [repr(value) for value in array.to_pylist()]


def column(items: Sequence[bytes]) -> pa.Array:
    return pa.array(items, pa.binary())


@pytest.mark.parametrize("leaf", LEAVES)
@given(items=payloads)
@settings(max_examples=120, deadline=None)
def test_a_payload_decodes_beside_any_others_as_it_does_alone(
    leaf: str, items: list[bytes]
) -> None:
    kind = pa.struct([("p", LEAVES[leaf])])
    alone = [shown(decode_payload(column([item]), kind))[0] for item in items]
    assert shown(decode_payload(column(items), kind)) == alone


@given(
    items=payloads,
    kinds=st.lists(st.sampled_from(sorted(KINDS)), max_size=2),
    drift=st.sampled_from(DRIFTS),
)
@settings(max_examples=600, deadline=None)
def test_a_rule_fits_a_payload_beside_any_others_as_it_does_alone(
    items: list[bytes], kinds: list[str], drift: Drift
) -> None:
    fields = [
        Field(path=(name,), column=name, kind=kind)
        for name, kind in zip(("p", "q"), kinds, strict=False)
    ]

    def answers(rows: list[bytes]) -> list[Any]:
        decoded = decode_rows(column(rows), "json", fields, drift)
        bad = [False] * len(rows) if decoded.bad is None else decoded.bad.to_pylist()
        names = [field.column for field in fields] + [RESCUED] * (drift == "rescue")
        columns = [shown(decoded.columns[name]) for name in names]
        return list(zip(bad, *columns, strict=True))

    assert answers(items) == [answers([item])[0] for item in items]


MISFITS = [b"true", b"NaN", b'"x"', b"1e400", b"9" * 5_000, b'1, "p": 2', b"[]", b"{}"]


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_misfit_takes_no_decimal_of_its_batch_with_it(misfit: bytes, place: int) -> None:
    items = [b'{"p": %d.25}' % number for number in range(999)]
    items.insert(place, b'{"p": %b}' % misfit)
    found = decode_payload(column(items), pa.struct([("p", pa.decimal128(10, 2))])).to_pylist()
    expected: list[Any] = [{"p": Decimal(number) + Decimal("0.25")} for number in range(999)]
    expected.insert(place, None)
    assert found == expected
