from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.infer import infer_type


def test_a_schema_is_inferred_from_all_that_is_json() -> None:
    payloads = [
        b'{"a": 1, "b": null, "c": [1, 2.5], "d": {"x": "y"}, "n": null, "e": []}',
        b"no JSON",
        b"\xff",
        b"[1]",
        b'{"a": 1.5, "b": true, "d": {"z": 1}, "f": 18446744073709551616}',
    ]
    assert infer_type(payloads).simpleString() == (
        "struct<a:double,b:boolean,c:array<double>,d:struct<x:string,z:bigint>,"
        "n:string,e:array<string>,f:double>"
    )


@pytest.mark.parametrize(
    "odd",
    [
        b'{"b": ' + b"9" * 5_000 + b"}",
        *(b'{"b": ' + b"[" * depth + b"]" * depth + b"}" for depth in (101, 600, 900, 100_000)),
        b"\xff\xfe{",
    ],
    ids=len,
)
def test_what_cannot_be_read_or_is_too_deep_is_passed_over(odd: bytes) -> None:
    assert infer_type([odd, b'{"a": 1}']).simpleString() == "struct<a:bigint>"


@pytest.mark.parametrize(
    ("payloads", "message"),
    [
        ([], "no payload is a JSON object"),
        ([b"1", b"x"], "no payload is a JSON object"),
    ],
    ids=repr,
)
def test_where_no_schema_can_be_inferred_one_must_be_given(
    payloads: list[bytes], message: str
) -> None:
    with pytest.raises(UsageError, match=rf"{message}.*set payloadSchema"):
        infer_type(payloads)


@pytest.mark.parametrize(
    ("payloads", "kind"),
    [
        ([b'{"a": 1}', b'{"a": "x"}', b'{"a": 1}'], "struct<a:string>"),
        ([b'{"a": "x"}', b'{"a": null}', b'{"a": {"b": 1}}'], "struct<a:string>"),
        ([b'{"a": [1, {}]}'], "struct<a:array<string>>"),
        (
            [b'{"a": {"b": [true], "c": 1}}', b'{"a": {"b": 1}}'],
            "struct<a:struct<b:string,c:bigint>>",
        ),
    ],
    ids=repr,
)
def test_a_field_of_several_types_is_a_string(payloads: list[bytes], kind: str) -> None:
    assert infer_type(payloads).simpleString() == kind
