"""Payloads as text or as structs, a column at a time; what cannot be decoded is NULL.

Invariant: a payload has one answer, whatever stands beside it: what the parser makes of it alone.

A column that decodes whole is decoded in one go. One with bad payloads in it is halved until they
stand alone. The parser of JSON is slow to begin, so those that it surely refuses are left out
first: Python tells by their values. What Python cannot read is left to the parser, which takes
numbers and depths that Python does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from json import loads
from math import isfinite
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_BLANKS: Final = b" \t\r\n"
_DECIMAL_LETTERS: Final = frozenset("0123456789+-.eE")


def decode_payload(payload: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return payloads as the type that was asked for: binary, string or struct."""
    if pa.types.is_binary(kind):
        return payload
    if pa.types.is_string(kind):
        return _joined(_decoded(payload, lambda part: part.cast(pa.string())), kind)
    return _decode_json(payload, kind)


def _decoded(
    payload: pa.Array, decode: Callable[[pa.Array], pa.Array | None]
) -> Iterable[pa.Array | int]:
    """Yield what decodes, in order, and for what does not the number of rows."""
    if len(payload) == 0:
        return ()
    try:
        decoded = decode(payload)
    except pa.ArrowInvalid:
        decoded = None
    if decoded is not None:
        return (decoded,)
    if len(payload) == 1:
        return (1,)
    half = len(payload) // 2
    return chain(_decoded(payload.slice(0, half), decode), _decoded(payload.slice(half), decode))


def _joined(parts: Iterable[pa.Array | int], kind: pa.DataType) -> pa.Array:
    arrays = [pa.nulls(part, kind) if isinstance(part, int) else part for part in parts]
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays or [pa.array([], kind)])


def _decode_json(payload: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse JSON objects, one a row.

    The rows are parsed as lines of one text. Each begins with { and ends with }, so that none can
    be joined to the next by leaving something open; then there are as many objects as rows only if
    each row is exactly one.
    """
    text = trimmed(payload)
    shaped = pc.and_(pc.starts_with(text, b"{"), pc.ends_with(text, b"}"))
    parse = _parser(kind)
    try:
        good = parse(text if shaped.true_count == len(text) else text.filter(shaped))
    except pa.ArrowInvalid:
        good = None
    if good is None:
        likely = [
            value is True and not is_surely_unfit(item.as_py(), kind)
            for value, item in zip(shaped.to_pylist(), text, strict=True)
        ]
        shaped = pa.array(likely, pa.bool_())
        good = _joined(_decoded(text.filter(shaped), parse), kind)
    if len(good) == len(payload):
        return good
    # Each good row goes to its place; the others take from nowhere and are null.
    places = pc.subtract(pc.cumulative_sum(shaped.cast(pa.int64())), 1)
    return good.take(pc.if_else(shaped, places, pa.scalar(None, pa.int64())))


def _parser(kind: pa.DataType) -> Callable[[pa.Array], pa.Array | None]:
    """Return what turns JSON objects into structs; None when they are not one a row."""
    schema = pa.schema(list(kind))
    options = pj.ParseOptions(
        explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
    )

    def parse(part: pa.Array) -> pa.Array | None:
        # The parser takes any bytes in a string, Spark does not.
        part.cast(pa.string())
        offsets = pa.array([0, len(part)], pa.int32())
        lines = pc.binary_join(pa.ListArray.from_arrays(offsets, part), b"\n")
        data = lines[0].as_buffer()
        read = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=read, parse_options=options)
        if table.num_rows != len(part):
            return None
        columns = [table.column(field.name).combine_chunks() for field in schema]
        return pa.StructArray.from_arrays(columns, fields=list(schema))

    return parse


def is_object(payload: bytes) -> bool:
    """Say whether a payload is a JSON object, as far as Python can tell; NaN is a number."""
    try:
        return isinstance(loads(payload), dict)
    except (ValueError, RecursionError):
        return False


def is_surely_unfit(payload: bytes, kind: pa.DataType) -> bool:
    """Say whether the parser refuses a payload for the type of one of its values.

    A payload of which this is not said may be refused all the same.
    """
    try:
        return not _may_fit(loads(payload), kind)
    except (ValueError, RecursionError):
        # Too many digits or too deep for Python, or words that the parser takes for numbers.
        return False


def _may_fit(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if pa.types.is_struct(kind):
        # Of a field that is there twice the parser refuses either.
        return isinstance(value, dict) and all(
            _may_fit(value.get(field.name), field.type) for field in kind
        )
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_may_fit(item, kind.value_type) for item in value)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return type(value) is int and -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1
    if pa.types.is_floating(kind):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if pa.types.is_decimal(kind):
        return _may_be_decimal(value)
    if pa.types.is_timestamp(kind):
        return isinstance(value, str) and value[:4].isdecimal()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return isinstance(value, str)
    return True


def _may_be_decimal(value: object) -> bool:
    match value:
        case bool():
            return False
        case float():
            return isfinite(value)
        case str():
            return _DECIMAL_LETTERS.issuperset(value)
        case _:
            return isinstance(value, int)


def trimmed(payload: pa.Array) -> pa.Array:
    """Return payloads without blanks around them; most have none and are not copied."""
    first = pc.binary_slice(payload, 0, 1)
    last = pc.binary_slice(payload, -1)
    blanks = pa.array([bytes([blank]) for blank in _BLANKS], pa.binary())
    ragged = pc.or_(pc.is_in(first, blanks), pc.is_in(last, blanks))
    if not pc.any(ragged).as_py():
        return payload
    return pa.array([value.strip(_BLANKS) for value in payload.to_pylist()], pa.binary())
