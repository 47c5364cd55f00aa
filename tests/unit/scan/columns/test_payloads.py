from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from siltstone.scan.columns.payloads import decode_payload

KIND = pa.struct(
    [
        pa.field("a", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("t", pa.timestamp("us", tz="UTC")),
        pa.field("l", pa.list_(pa.field("element", pa.float64()))),
        pa.field("b", pa.bool_()),
        pa.field("o", pa.struct([pa.field("x", pa.int32())])),
    ]
)
NOTHING = dict.fromkeys(["a", "s", "t", "l", "b", "o"])


def whole(**fields: Any) -> dict[str, Any]:
    return NOTHING | fields


DOCUMENTS: list[tuple[bytes, dict[str, Any] | None]] = [
    (b'{"a": 1, "s": "x"}', whole(a=1, s="x")),
    (b"{}", NOTHING),
    (b' {"a": 4}\r\n', whole(a=4)),
    (b'{"a": 7,\n"s": "y"}', whole(a=7, s="y")),
    (b'{"a": 5, "unknown": {"q": [1]}}', whole(a=5)),
    (
        b'{"l": [1, 2.5, null], "b": true, "o": {"x": 3}}',
        whole(l=[1, 2.5, None], b=True, o={"x": 3}),
    ),
    (b'{"a": 9007199254740993}', whole(a=9007199254740993)),
    (b'{"a": null, "o": null}', NOTHING),
    ('{"s": "ä\\u00e4"}'.encode(), whole(s="ää")),
    (b'{"s": 21.50}', whole(s="21.50")),
    (b'{"s": 12345678901234567890123, "a": 3}', whole(s="12345678901234567890123", a=3)),
    (b'{"s": true, "b": true}', whole(s="true", b=True)),
    (b'{"s": {"x": [1.0, null, "\\u00e4"]}}', whole(s='{"x":[1.0,null,"\\u00e4"]}')),
    (
        b'{"s": [], "a": 9007199254740993, "o": {"x": 1}}',
        whole(s="[]", a=(1 << 53) + 1, o={"x": 1}),
    ),
    (b'{"s": 1, "a": "text"}', None),
    (b'{"s": 1, "s": 2}', None),
    (b"", None),
    (b" ", None),
    (b"nope", None),
    (b"null", None),
    (b"[]", None),
    (b"3", None),
    (b"{", None),
    (b'{"a": {}', None),
    (b"{}}", None),
    (b'{"a": 2}{"a": 3}', None),
    (b'{"a": 2}\n{"a": 3}', None),
    (b'{"a": "text"}', None),
    (b'{"a": 1.5}', None),
    (b'{"a": true}', None),
    (b'{"b": 1}', None),
    (b'{"o": {"x": 3000000000}}', None),
    (b'{"o": [1]}', None),
    (b'{"l": {}}', None),
    (b'{"t": "yesterday"}', None),
    (b'{"a": NaN}', None),
    (b"\xff", None),
    (b'{"s": "\xff"}', None),
    (b'{"s": "}', None),
]


@pytest.mark.parametrize(("payload", "expected"), DOCUMENTS, ids=repr)
def test_a_payload_is_exactly_one_json_object_or_null(
    payload: bytes, expected: dict[str, Any] | None
) -> None:
    assert decode_payload(pa.array([payload], pa.binary()), KIND).to_pylist() == [expected]


def test_bad_payloads_do_not_disturb_their_neighbours() -> None:
    column = pa.array([payload for payload, _ in DOCUMENTS], pa.binary())
    expected = [row for _, row in DOCUMENTS]
    decoded = decode_payload(column, KIND)
    decoded.validate(full=True)
    assert (decoded.type, decoded.to_pylist()) == (KIND, expected)
    assert decode_payload(column.slice(3, 17), KIND).to_pylist() == expected[3:20]
    turned = column.take(pa.array(range(len(column) - 1, -1, -1)))
    assert decode_payload(turned, KIND).to_pylist() == expected[::-1]


MAPPED = pa.struct(
    [
        pa.field("m", pa.map_(pa.string(), pa.float64())),
        pa.field("l", pa.list_(pa.map_(pa.string(), pa.string()))),
        pa.field("o", pa.struct([pa.field("n", pa.map_(pa.string(), pa.list_(pa.int64())))])),
    ]
)
MAPS: list[tuple[bytes, dict[str, Any] | None]] = [
    (
        b'{"m": {"a": 1, "b": 2.5}, "l": [{"x": 1.50, "y": [true]}, {}, null], "q": 1}',
        {
            "m": [("a", 1.0), ("b", 2.5)],
            "l": [[("x", "1.50"), ("y", "[true]")], [], None],
            "o": None,
        },
    ),
    (
        b'{"o": {"n": {"k": [1, 2], "": null}}}',
        {"m": None, "l": None, "o": {"n": [("k", [1, 2]), ("", None)]}},
    ),
    (b"{}", {"m": None, "l": None, "o": None}),
    (b'{"m": [{"key": "a", "value": 1}]}', None),
    (b'{"m": {"a": "text"}}', None),
    (b'{"m": 3}', None),
    (b"[1]", None),
    (b"nope", None),
    (b"", None),
]


def test_objects_become_maps_and_only_objects() -> None:
    column = pa.array([payload for payload, _ in MAPS], pa.binary())
    decoded = decode_payload(column, MAPPED)
    decoded.validate(full=True)
    assert (decoded.type, decoded.to_pylist()) == (MAPPED, [row for _, row in MAPS])
    assert decode_payload(column.slice(1, 3), MAPPED).to_pylist() == [row for _, row in MAPS[1:4]]
    for payload, expected in MAPS:
        assert decode_payload(pa.array([payload], pa.binary()), MAPPED).to_pylist() == [expected]
    assert decode_payload(column.slice(0, 0), MAPPED).type == MAPPED


def test_what_two_payloads_leave_open_is_not_joined() -> None:
    column = pa.array([b'{"s": "}', b'{"}', b'{"o": {}', b'{"a": 1}'], pa.binary())
    assert decode_payload(column, KIND).to_pylist() == [None, None, None, whole(a=1)]


def test_many_payloads_without_a_bad_one_are_parsed_in_one_go() -> None:
    column = pa.array([b'{"a": %d}' % number for number in range(5000)], pa.binary())
    decoded = decode_payload(column, KIND)
    assert decoded.field(0).to_pylist() == list(range(5000))


def test_no_payloads_are_no_rows() -> None:
    empty = pa.array([], pa.binary())
    assert [decode_payload(empty, kind) for kind in (KIND, pa.string(), pa.binary())] == [
        pa.array([], KIND),
        pa.array([], pa.string()),
        empty,
    ]


def test_text_is_utf8_or_null() -> None:
    column = pa.array([b"a", b"\xff", "ä".encode(), b"", b"\xc3"], pa.binary())
    assert decode_payload(column, pa.string()).to_pylist() == ["a", None, "ä", "", None]
    assert decode_payload(column.slice(2, 2), pa.string()).to_pylist() == ["ä", ""]


def test_raw_payloads_are_passed_on_as_they_are() -> None:
    column = pa.array([b"a", b"\xff"], pa.binary())
    assert decode_payload(column, pa.binary()) is column
