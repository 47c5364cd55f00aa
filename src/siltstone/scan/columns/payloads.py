"""Decoding of payloads to text or structs, a column at a time; undecodable payloads are NULL.

Invariant: the result for a payload does not depend on its neighbours. It is the result of the
parser for this payload alone.

A value that is not text fits a string: the string is its JSON, with the digits of a number as they
were sent. Spark's from_json gives the same text, but rewrites the digits of a fraction.

A column without bad payloads is decoded in one call. A column with bad payloads is halved until
each bad one is alone. A call of the JSON parser has a high fixed cost, so payloads that it would
surely refuse are removed first, by a check of their values in Python. Payloads that Python cannot
read are left to the parser, which accepts numbers and depths that Python does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from json import dumps, loads
from math import isfinite
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_BLANKS: Final = b" \t\r\n"
_DECIMAL_LETTERS: Final = frozenset("0123456789+-.eE")


def decode_payload(payload: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return payloads as the requested type: binary, string or struct."""
    if pa.types.is_binary(kind):
        return payload
    if pa.types.is_string(kind):
        return _joined(_decoded(payload, lambda part: part.cast(pa.string())), kind)
    if _has_map(kind):
        return _decode_maps(payload, kind)
    return _decode_json(payload, kind)


def _decode_maps(payload: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode a type with maps; the parser has none, so it reads them as lists of entries."""
    texts = [_with_entries(text, kind) for text in trimmed(payload).to_pylist()]
    return _with_maps(_decode_json(pa.array(texts, pa.binary()), _listed(kind)), kind)


def _with_entries(payload: bytes, kind: pa.DataType) -> bytes:
    """Return a payload with lists of entries where the type has maps; empty if it does not fit."""
    try:
        if not _may_fit(loads(payload), kind):
            return b""
        return json_text(_as_text(exact_document(payload), kind)).encode()
    except (ValueError, RecursionError):
        return b""


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_map(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_map(kind.value_type)
    return bool(pa.types.is_map(kind))


def _listed(kind: pa.DataType) -> pa.DataType:
    """Return a type with lists of entries in place of maps."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_listed(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_listed(kind.value_type)))
    if pa.types.is_map(kind):
        entry = [pa.field("key", kind.key_type), pa.field("value", _listed(kind.item_type))]
        return pa.list_(pa.struct(entry))
    return kind


def _with_maps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array of `_listed(kind)` as one of this type."""
    if pa.types.is_struct(kind):
        columns = [_with_maps(array.field(number), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    if not (pa.types.is_map(kind) or pa.types.is_list(kind)):
        return array
    inner = (
        pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else (kind.value_type)
    )
    values = _with_maps(array.values, inner)
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=[values])


def _decoded(
    payload: pa.Array, decode: Callable[[pa.Array], pa.Array | None]
) -> Iterable[pa.Array | int]:
    """Yield decoded arrays in order, or the number of rows for a part that cannot be decoded."""
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
    """Parse one JSON object for each row.

    The rows are parsed as the lines of one text. Each row begins with { and ends with }, so an
    unclosed row cannot be joined with the next one. The number of objects therefore equals the
    number of rows only if each row is exactly one object.
    """
    text = trimmed(payload)
    shaped = pc.and_(pc.starts_with(text, b"{"), pc.ends_with(text, b"}"))
    parse = _parser(kind)
    try:
        good = parse(text if shaped.true_count == len(text) else text.filter(shaped))
    except pa.ArrowInvalid:
        good = None
    if good is None:
        has_text = _has_text(kind)
        likely = [
            value is True and not is_surely_unfit(item.as_py(), kind)
            for value, item in zip(shaped.to_pylist(), text, strict=True)
        ]
        shaped = pa.array(likely, pa.bool_())
        if has_text:
            text = pa.array(
                [
                    _with_text(item.as_py(), kind) if fits else None
                    for item, fits in zip(text, likely, strict=True)
                ],
                pa.binary(),
            )
        good = _joined(_decoded(text.filter(shaped), parse), kind)
    if len(good) == len(payload):
        return good
    # Move each decoded row to its place. The other rows take a null index and become null.
    places = pc.subtract(pc.cumulative_sum(shaped.cast(pa.int64())), 1)
    return good.take(pc.if_else(shaped, places, pa.scalar(None, pa.int64())))


def _parser(kind: pa.DataType) -> Callable[[pa.Array], pa.Array | None]:
    """Return a function from JSON objects to structs; it returns None unless each row is one
    object.
    """
    schema = pa.schema(list(kind))
    options = pj.ParseOptions(
        explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
    )

    def parse(part: pa.Array) -> pa.Array | None:
        # The parser accepts any bytes in a string, Spark does not.
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


class Number(str):
    """A number of a document, with its digits as they were sent."""

    __slots__ = ()


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_text(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_text(kind.value_type)
    return bool(pa.types.is_string(kind))


def _with_text(payload: bytes, kind: pa.DataType) -> bytes:
    """Return a payload in which each value of a string field is text."""
    try:
        document = exact_document(payload)
        changed = _as_text(document, kind)
        return payload if changed is document else json_text(changed).encode()
    except (ValueError, RecursionError):
        return payload


def exact_document(payload: bytes) -> Any:
    """Return a document whose numbers are `Number`. Raises: ValueError, RecursionError."""
    return loads(
        payload,
        parse_int=Number,
        parse_float=Number,
        parse_constant=Number,
        object_pairs_hook=_distinct,
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises: ValueError for a repeated field, which the parser refuses."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a field is repeated")
    return document


def _as_text(value: Any, kind: pa.DataType) -> Any:
    """Return a value with text where the type has strings; the value itself if nothing changes."""
    if value is None:
        return None
    if pa.types.is_string(kind):
        if isinstance(value, str) and not isinstance(value, Number):
            return value
        return json_text(value)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        changes = {
            field.name: after
            for field in kind
            if field.name in value
            for before in [value[field.name]]
            for after in [_as_text(before, field.type)]
            if after is not before
        }
        return value | changes if changes else value
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [
            {"key": key, "value": _as_text(item, kind.item_type)} for key, item in value.items()
        ]
    if pa.types.is_list(kind) and isinstance(value, list):
        items = [_as_text(item, kind.value_type) for item in value]
        is_same = all(one is other for one, other in zip(items, value, strict=True))
        return value if is_same else items
    return value


def json_text(value: Any) -> str:
    """Return an exact document as JSON, with its numbers as they were sent."""
    match value:
        case Number():
            return str(value)
        case dict():
            return (
                f"{{{','.join(f'{dumps(key)}:{json_text(item)}' for key, item in value.items())}}}"
            )
        case list():
            return f"[{','.join(map(json_text, value))}]"
        case _:
            return dumps(value)


def is_object(payload: bytes) -> bool:
    """Return whether a payload is a JSON object for Python, which accepts NaN as a number."""
    try:
        return isinstance(loads(payload), dict)
    except (ValueError, RecursionError):
        return False


def is_surely_unfit(payload: bytes, kind: pa.DataType) -> bool:
    """Return whether the parser will refuse a payload because of the type of a value.

    The parser may refuse other payloads too.
    """
    try:
        return not _may_fit(loads(payload), kind)
    except (ValueError, RecursionError):
        # Too many digits or too deep for Python, or words that the parser accepts as numbers.
        return False


def _may_fit(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if pa.types.is_struct(kind):
        # Only the last value of a repeated field is checked. The parser refuses every repeated
        # field.
        return isinstance(value, dict) and all(
            _may_fit(value.get(field.name), field.type) for field in kind
        )
    if pa.types.is_map(kind):
        return isinstance(value, dict) and all(
            _may_fit(item, kind.item_type) for item in value.values()
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
    if pa.types.is_binary(kind):
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
    """Return payloads without whitespace around them; without whitespace nothing is copied."""
    first = pc.binary_slice(payload, 0, 1)
    last = pc.binary_slice(payload, -1)
    blanks = pa.array([bytes([blank]) for blank in _BLANKS], pa.binary())
    ragged = pc.or_(pc.is_in(first, blanks), pc.is_in(last, blanks))
    if not pc.any(ragged).as_py():
        return payload
    return pa.array([value.strip(_BLANKS) for value in payload.to_pylist()], pa.binary())
