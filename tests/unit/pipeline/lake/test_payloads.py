from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from siltstone.pipeline.lake.fields import Field
from siltstone.pipeline.lake.payloads import (
    Decoder,
    chained,
    decode_rows,
    find_fields,
    likely_decoder,
    reason_of,
)

VALUE = Field(path=("v",), column="v", kind="double")
INNER = Field(path=("o", "p"), column="o_p", kind="string")
LIST = Field(path=("l",), column="l", kind="array<double>")


def decoded(
    payloads: list[bytes], decoder: Decoder, *fields: Field
) -> tuple[dict[str, list[Any]], list[int], list[Any]]:
    """Return columns, the numbers of the rows that could not be decoded, and the new fields."""
    found = decode_rows(pa.array(payloads, pa.binary()), decoder, fields)
    bad = [] if found.bad is None else [n for n, item in enumerate(found.bad.to_pylist()) if item]
    return {name: item.to_pylist() for name, item in found.columns.items()}, bad, list(found.found)


def test_objects_become_columns() -> None:
    rows = [b'{"v": 1, "o": {"p": "x"}}', b' {"v": 2.5}\n', b'{"o": null}', b"{}"]
    assert decoded(rows, "json", VALUE, INNER) == (
        {"v": [1.0, 2.5, None, None], "o_p": ["x", None, None, None]},
        [],
        [],
    )


def test_what_is_no_object_or_does_not_fit_is_told_apart() -> None:
    rows = [b'{"v": 1}', b"x", b'{"v": "1"}', b"[]", b'{"o": 3}', b"", b'{"v": 2}']
    columns, bad, found = decoded(rows, "json", VALUE, INNER)
    assert (columns["v"], bad, found) == (
        [1.0, None, None, None, None, None, 2.0],
        [1, 2, 3, 4, 5],
        [],
    )
    assert [reason_of(rows[number], "json", [VALUE, INNER]) for number in bad[:5]] == [
        "not json: Expecting value: line 1 column 1 (char 0)",
        'v is not of type double: "1"',
        "must be an object, got list",
        "o is not of type object: 3",
        "not json: Expecting value: line 1 column 1 (char 0)",
    ]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'\xef\xbb\xbf{"v": 1}', "not json: it begins with a byte order mark"),
        (b'{"v": 1, "o": {"p": "x", "p": "y"}}', "not json: field 'p' is repeated"),
        (b'{"q": NaN}', "not json: NaN is not JSON outside of a number field"),
        (b'{"q": [{"r": -Infinity}]}', "not json: Infinity is not JSON outside of a number field"),
        (b'{"o": {"p": "\xff"}}', "not json: 'utf-8' codec can't decode byte 0xff in position 13"),
        (b'{"v": 1} 2', "not json: Extra data: line 1 column 10 (char 9)"),
    ],
)
def test_the_reason_names_the_cause(payload: bytes, reason: str) -> None:
    assert reason_of(payload, "json", [VALUE, INNER]).startswith(reason)


@pytest.mark.parametrize("beside", [[], [b"x"], [b'{"v": "offline"}']])
def test_nan_is_a_double_whatever_stands_beside_it(beside: list[bytes]) -> None:
    columns, bad, _ = decoded([b'{"v": NaN}', *beside], "json", VALUE)
    assert (repr(columns["v"][0]), bad) == ("nan", list(range(1, 1 + len(beside))))
    _, bad, found = decoded([b'{"v": NaN}', b"{}", *beside], "json")
    assert (found, bad) == ([(("v",), "double")], [2] if beside == [b"x"] else [])


@pytest.mark.parametrize("depth", [600, 10_000, 1_000_000])
def test_a_payload_that_is_nested_deeply_takes_nothing_with_it(depth: int) -> None:
    deep = b'{"q": ' + b"[" * depth + b"]" * depth + b', "v": 1}'
    for rows in ([deep], [deep, b'{"v": 2}'], [deep, b'{"v": 2}', b"x"]):
        columns, bad, found = decoded(rows, "json", VALUE)
        assert (columns["v"], bad, found) == (
            [1.0, 2.0, None][: len(rows)],
            [2][: len(rows) // 3],
            [],
        )
    assert reason_of(deep, "json", [Field(path=("q",), column="q", kind="double")])


def test_fields_that_no_rule_names_are_found_whatever_else_is_there() -> None:
    assert decoded([b'{"v": 1, "w": true}'], "json", VALUE)[2] == [(("w",), "boolean")]
    rows = [b'{"v": 1}'] * 3000 + [b"x", b'{"w": [1]}']
    assert decoded(rows, "json", VALUE)[2] == [(("w",), "array<double>")]
    # Two types of one new field: the first that is seen.
    assert decoded([b'{"w": 1}', b'{"w": "x"}'], "json")[2] == [(("w",), "double")]


def test_objects_without_fields_are_objects() -> None:
    assert decoded([b"{}", b"{ }", b"1"], "json") == ({}, [2], [])


def test_cbor_and_messagepack_are_read_like_json() -> None:
    # {"v": 1.5, "b": h'ff'}, then an array, then NaN.
    cbor = [bytes.fromhex(text) for text in ("a26176f93e00616241ff", "80", "a16176f97e00")]
    bytes_field = Field(path=("b",), column="b", kind="string")
    assert decoded(cbor, "cbor", VALUE, bytes_field) == (
        {"v": [1.5, None, None], "b": ["/w==", None, None]},
        [1],
        [],
    )
    packed = [bytes.fromhex(text) for text in ("81a17603", "c1")]
    assert decoded(packed, "msgpack", VALUE) == ({"v": [3.0, None]}, [1], [])
    assert (
        reason_of(packed[1], "msgpack", [VALUE])
        == "not msgpack: invalid MessagePack: byte 0xc1 at 0"
    )
    assert find_fields(cbor, "cbor") == [(("v",), "double"), (("b",), "string")]


def test_text_is_a_column_and_raw_is_none() -> None:
    assert decoded([b"x", b"\xff"], "text") == ({"text": ["x", None]}, [1], [])
    assert reason_of(b"\xff", "text", []).startswith("not text: 'utf-8' codec can't decode")
    assert decoded([b"x", b"\xff"], "raw") == ({}, [], [])


@pytest.mark.parametrize(
    ("payloads", "decoder"),
    [
        ([b'{"a": 1}', b" {} "], "json"),
        ([b"{}"] * 8 + [b"", b"x"], "json"),
        ([b"{}", b"x"], "text"),
        ([b"21.5", b""], "text"),
        ([], "text"),
        ([b"x", b"\xff"], "raw"),
    ],
)
def test_what_payloads_are_is_seen_from_some(payloads: list[bytes], decoder: str) -> None:
    assert likely_decoder(payloads) == decoder


@pytest.mark.parametrize(
    ("payload", "field", "reason"),
    [
        (b'{"l": [1, "x"]}', LIST, 'l is not of type array<double>: [1, "x"]'),
        (b'{"l": [true]}', LIST, "l is not of type array<double>: [true]"),
        (b'{"v": true}', VALUE, "v is not of type double: true"),
        (
            b'{"v": 1}',
            VALUE,
            "a number or a nesting of the json is too large for the parser",
        ),
    ],
)
def test_the_reason_names_the_field(payload: bytes, field: Field, reason: str) -> None:
    assert reason_of(payload, "json", [field]) == reason


def test_what_several_found_is_kept_once_by_its_first_type() -> None:
    parts = [[(("a",), "double")], [(("a",), "string"), (("b",), "string")]]
    assert chained(parts) == [(("a",), "double"), (("b",), "string")]


WHOLE = Field(path=("id",), column="id", kind="bigint")
HUGE = Field(path=("h",), column="h", kind="decimal(38,0)")
WORD = Field(path=("s",), column="s", kind="string")
TIME = Field(path=("t",), column="t", kind="timestamp")


def rescued(*payloads: bytes, fields: tuple[Field, ...]) -> tuple[dict[str, list[Any]], list[int]]:
    found = decode_rows(pa.array(payloads, pa.binary()), "json", fields, "rescue")
    bad = [] if found.bad is None else [n for n, item in enumerate(found.bad.to_pylist()) if item]
    return {name: item.to_pylist() for name, item in found.columns.items()}, bad


@pytest.mark.parametrize(
    ("payload", "fields", "columns", "beside"),
    [
        (b'{"v": 1.5}', (VALUE,), {"v": 1.5}, None),
        (b'{"v": "offline"}', (VALUE,), {"v": None}, '{"v":"offline"}'),
        (b'{"v": true, "s": 21.50}', (VALUE, WORD), {"v": None, "s": "21.50"}, '{"v":true}'),
        (b'{"v": 9007199254740993}', (VALUE,), {"v": None}, '{"v":9007199254740993}'),
        (b'{"v": 9007199254740992}', (VALUE,), {"v": 2.0**53}, None),
        (b'{"v": 1e300}', (VALUE,), {"v": 1e300}, None),
        (b'{"id": 9007199254740993}', (WHOLE,), {"id": (1 << 53) + 1}, None),
        (b'{"id": 21.5}', (WHOLE,), {"id": None}, '{"id":21.5}'),
        (b'{"id": 9223372036854775808}', (WHOLE,), {"id": None}, '{"id":9223372036854775808}'),
        (b'{"h": 18446744073709551617}', (HUGE,), {"h": Decimal(18446744073709551617)}, None),
        (b'{"o": 3, "v": 2}', (INNER, VALUE), {"o_p": None, "v": 2.0}, '{"o":3}'),
        (b'{"o": {"p": {"q": [1]}}}', (INNER,), {"o_p": '{"q":[1]}'}, None),
        (b'{"l": [1, "x"], "v": 2}', (LIST, VALUE), {"l": None, "v": 2.0}, '{"l":[1,"x"]}'),
        (b'{"t": "soon", "v": 2}', (TIME, VALUE), {"t": None, "v": None}, '{"t":"soon","v":2}'),
        (b'{"q": "new"}', (VALUE,), {"v": None}, None),
    ],
    ids=lambda item: repr(item)[:40],
)
def test_a_value_that_does_not_fit_stands_beside_its_row(
    payload: bytes, fields: tuple[Field, ...], columns: dict[str, Any], beside: str | None
) -> None:
    assert rescued(payload, fields=fields) == (
        {name: [value] for name, value in columns.items()} | {"_rescued": [beside]},
        [],
    )
    # Neighbours change nothing.
    among, bad = rescued(b"x", payload, b"{}", payload, fields=fields)
    assert bad == [0]
    expected = columns | {"_rescued": beside}
    assert {name: [item[1], item[3]] for name, item in among.items()} == {
        name: [value, value] for name, value in expected.items()
    }


def test_integers_that_a_double_would_change_are_found_as_such() -> None:
    rows = [
        b'{"id": 1, "h": 18446744073709551617, "v": 3, "l": [9007199254740993, 1]}',
        b'{"v": 1.5}',
    ]
    assert decoded([*rows, b'{"id": 9007199254740993}'], "json")[2] == [
        (("id",), "bigint"),
        (("h",), "decimal(38,0)"),
        (("v",), "double"),
        (("l",), "array<bigint>"),
    ]
