"""Decoding of payloads to columns, by rule; rows that cannot be decoded get a reason.

The result for a payload depends only on the payload and the rule, not on its neighbours, so a
repeated batch has the same result. Fields that a rule does not name yet are reported and not
dropped: the caller adds them and decodes again.

A document with a value that does not fit its column stays in its table if the policy is `rescue`:
the column is NULL, and `_rescued` has the value, as JSON by the path of the field.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from siltstone.errors import UsageError
from siltstone.pipeline.lake.fields import (
    EXACT_MAX,
    KINDS,
    Field,
    Path,
    column_of,
    evolved_kind,
    paths_of_type,
    paths_of_value,
    settled,
    struct_of,
    wider,
)
from siltstone.pipeline.lake.formats.cbor import decode_cbor
from siltstone.pipeline.lake.formats.msgpack import decode_msgpack
from siltstone.pipeline.lake.rescue import mend
from siltstone.scan.columns.payloads import decode_payload, is_object, trimmed

# With auto, the decoder is chosen when the first payloads arrive.
Decoder = Literal["json", "cbor", "msgpack", "text", "raw", "auto"]
DECODERS: Final[tuple[Decoder, ...]] = ("json", "cbor", "msgpack", "text", "raw", "auto")
# The policies for a document with a value that does not fit its column.
Drift = Literal["rescue", "evolve", "dead_letter", "reject"]
DRIFTS: Final[tuple[Drift, ...]] = ("rescue", "evolve", "dead_letter", "reject")
# With these, the row stays in its table.
_RESCUES: Final = ("rescue", "evolve")
TEXT: Final = "text"
RESCUED: Final = "_rescued"
REASON_MAX: Final = 300
_MOST: Final = 0.8
# Payloads with this many brackets are not parsed with inferred types.
_DEEP: Final = 500
# The type to recognize objects without fields: a struct needs a field, so it has one that no object
# has.
_NOTHING: Final = pa.struct([pa.field("\0", pa.null())])
_BINARY: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "cbor": decode_cbor,
    "msgpack": decode_msgpack,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Columns by name, the rows that could not be decoded (None for none), and new fields."""

    columns: dict[str, pa.Array]
    bad: pa.Array | None = None
    found: tuple[tuple[Path, str], ...] = ()


def decode_rows(
    payload: pa.Array, decoder: Decoder, fields: Sequence[Field], drift: Drift = "dead_letter"
) -> Decoded:
    """Decode a column of payloads."""
    match decoder:
        case "raw" | "auto":
            return Decoded(columns={})
        case "text":
            text = decode_payload(payload, pa.string())
            bad = text.is_null() if text.null_count else None
            return Decoded(columns={TEXT: text}, bad=bad)
        case "json":
            return _decode_objects(payload, fields, drift)
        case "cbor" | "msgpack":
            return _decode_objects(_as_json(payload, _BINARY[decoder]), fields, drift)


def text_columns(decoder: Decoder) -> dict[str, pa.DataType]:
    """Return the columns that a decoder always produces."""
    return {TEXT: pa.string()} if decoder == "text" else {}


def rescue_columns(decoder: Decoder, drift: Drift) -> dict[str, pa.DataType]:
    """Return the column for values that do not fit theirs, which comes last."""
    return (
        {RESCUED: pa.string()}
        if drift in _RESCUES and decoder not in ("text", "raw", "auto")
        else {}
    )


def reason_of(payload: bytes, decoder: Decoder, fields: Sequence[Field]) -> str:
    """Return in one line why a payload could not be decoded."""
    try:
        document = _document_of(payload, decoder)
    except (ValueError, RecursionError, UsageError) as exc:
        return f"not {decoder}: {exc}"[:REASON_MAX]
    if not isinstance(document, dict):
        return f"must be an object, got {type(document).__name__}"
    for field in fields:
        value: Any = document
        for depth, word in enumerate(field.path, 1):
            value = value.get(word)
            inside = depth < len(field.path)
            if value is None:
                break
            if not (isinstance(value, dict) if inside else _fits(value, field)):
                kind = "object" if inside else field.kind
                return f"{'.'.join(field.path[:depth])} is not of type {kind}: {_shown(value)}"[
                    :REASON_MAX
                ]
    if word := _not_json(document):
        return f"not {decoder}: {word} is not JSON outside of a number field"
    return f"a number or a nesting of the {decoder} is too large for the parser"


def _document_of(payload: bytes, decoder: Decoder) -> Any:
    """Return the document of a payload, read more strictly than by Python's own parser.

    Raises: ValueError, RecursionError, UsageError.
    """
    match decoder:
        case "text":
            payload.decode()
        case "json":
            if payload.startswith(BOM_UTF8):
                raise ValueError("it begins with a byte order mark")
            return json.loads(payload.decode(), object_pairs_hook=_refuse_repeated)
        case "cbor" | "msgpack":
            return _BINARY[decoder](payload)
        case "raw" | "auto":
            pass
    return {}


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is repeated")
    return document


def _not_json(value: Any) -> str:
    """Return a word of a document that Python accepts and JSON does not have; empty for none."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity"
        case dict():
            return next(filter(None, map(_not_json, value.values())), "")
        case list():
            return next(filter(None, map(_not_json, value)), "")
        case _:
            return ""


def _shown(value: Any) -> str:
    try:
        return json.dumps(value, default=str)
    except RecursionError:
        return f"{type(value).__name__}, nested too deeply"


def likely_decoder(payloads: Sequence[bytes]) -> Decoder:
    """Return the decoder for sample payloads: json if most are objects, otherwise text or raw."""
    objects = sum(map(is_object, payloads))
    if objects and objects >= _MOST * len(payloads):
        return "json"
    try:
        for payload in payloads:
            payload.decode()
    except UnicodeDecodeError:
        return "raw"
    return "text"


def find_fields(payloads: Iterable[bytes], decoder: Decoder) -> list[tuple[Path, str]]:
    """Return the fields of some payloads, in the order of their first occurrence."""
    found: dict[Path, str] = {}
    for payload in payloads:
        try:
            document = (
                json.loads(payload) if decoder not in _BINARY else _plain(_BINARY[decoder](payload))
            )
            paths = list(paths_of_value(document)) if isinstance(document, dict) else []
        except (ValueError, RecursionError, UsageError):
            continue
        for path, kind in paths:
            found[path] = wider(found.get(path, kind), kind)
    return [(path, settled(kind) or kind) for path, kind in found.items()]


def _decode_objects(payload: pa.Array, fields: Sequence[Field], drift: Drift) -> Decoded:
    kind = struct_of(fields)
    text = trimmed(payload)
    table = _parse_whole(text, kind)
    known = {field.path for field in fields}
    if table is not None:
        struct = _struct_of_table(table)
        columns = _columns(struct, fields)
        found = _new(_fields_of_table(struct, text), known)
        odd = _inexact(columns, fields) if drift in _RESCUES else None
        if odd is None:
            more = {RESCUED: pa.nulls(len(text), pa.string())} if drift in _RESCUES else {}
            return Decoded(columns=columns | more, found=found)
    else:
        found = None
    return _decode_one_by_one(text, fields, drift, found)


def _struct_of_table(table: pa.Table) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [table.column(number).combine_chunks() for number in range(table.num_columns)],
        fields=list(table.schema),
    )


def _fields_of_table(struct: pa.StructArray, text: pa.Array) -> Iterable[tuple[Path, str]]:
    """Return the fields that Arrow inferred; integers that doubles would change are looked at."""
    if _has_large(struct):
        return find_fields(text.to_pylist(), "json")
    return paths_of_type(struct.type)


def _has_large(column: pa.Array) -> bool:
    """Return whether a number in a column may be an integer that a double would change."""
    if pa.types.is_struct(column.type):
        return any(_has_large(part) for part in column.flatten())
    if pa.types.is_list(column.type):
        return _has_large(column.flatten())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return False
    bounds = pc.min_max(column).as_py()
    return any(bound is not None and abs(bound) >= EXACT_MAX for bound in bounds.values())


def _inexact(columns: Mapping[str, pa.Array], fields: Sequence[Field]) -> pa.Array | None:
    """Return the rows with doubles that may have been larger integers; None if there are none."""
    odd: pa.Array | None = None
    for field in fields:
        column = columns[field.column]
        if field.kind == "double" and _has_large(column):
            large = pc.fill_null(pc.greater_equal(pc.abs(column), float(EXACT_MAX)), False)  # noqa: FBT003 - by position only
            odd = large if odd is None else pc.or_(odd, large)
    return odd


def _fields_of_good(
    text: pa.Array, bad: pa.Array | None, kind: pa.StructType
) -> Iterable[tuple[Path, str]]:
    """Return the fields of the rows that can be decoded."""
    if bad is not None:
        text = text.filter(pc.invert(bad))
    table = _parse_whole(text, kind) if len(text) else None
    if table is not None:
        return _fields_of_table(_struct_of_table(table), text)
    return find_fields(text.to_pylist(), "json")


def _new(found: Iterable[tuple[Path, str]], known: set[Path]) -> tuple[tuple[Path, str], ...]:
    return tuple((path, kind) for path, kind in found if path not in known)


def _columns(struct: pa.Array, fields: Sequence[Field]) -> dict[str, pa.Array]:
    return {field.column: column_of(struct, field.path, KINDS[field.kind]) for field in fields}


def _parse_whole(text: pa.Array, kind: pa.StructType) -> pa.Table | None:
    """Parse a column in one call; None unless every row is an object with fitting fields."""
    shaped = pc.and_(pc.starts_with(text, b"{"), pc.ends_with(text, b"}"))
    if shaped.true_count < len(text) or _is_deep(text):
        return None
    options = pj.ParseOptions(
        explicit_schema=pa.schema(list(kind)),
        newlines_in_values=True,
        unexpected_field_behavior="infer",
    )
    try:
        # The parser accepts any bytes in a string, readers of tables do not.
        text.cast(pa.string())
        offsets = pa.array([0, len(text)], pa.int32())
        lines = pc.binary_join(pa.ListArray.from_arrays(offsets, text), b"\n")
        data = lines[0].as_buffer()
        read = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=read, parse_options=options)
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == len(text) and table.num_columns else None


def _is_deep(text: pa.Array) -> bool:
    """Return whether a payload may be so deep that inferring its type overflows the stack."""
    if not len(text) or pc.max(pc.binary_length(text)).as_py() < 2 * _DEEP:
        return False
    opened = pc.add(pc.count_substring(text, "["), pc.count_substring(text, "{"))
    return bool(pc.max(opened).as_py() >= _DEEP)


def _decode_one_by_one(
    text: pa.Array,
    fields: Sequence[Field],
    drift: Drift,
    found: tuple[tuple[Path, str], ...] | None,
) -> Decoded:
    """Decode the rows that can be decoded, and rescue the values that do not fit."""
    kind = struct_of(fields)
    rescued: dict[str, pa.Array] = {}
    struct = decode_payload(text, kind if kind.num_fields else _NOTHING)
    misfits: tuple[tuple[Path, str], ...] = ()
    if drift in _RESCUES:
        columns = _columns(struct, fields)
        odd, large = struct.is_null(), _inexact(columns, fields)
        odd = odd if large is None else pc.or_(odd, large)
        text, beside = _rescued(text, odd, fields)
        rescued = {RESCUED: beside}
        misfits = _misfits(beside, fields) if drift == "evolve" else ()
        struct = decode_payload(text, kind if kind.num_fields else _NOTHING)
    bad = struct.is_null()
    good = bad if bad.true_count else None
    if found is None:
        found = _new(_fields_of_good(text, good, kind), {field.path for field in fields})
    columns = _columns(struct, fields) | rescued
    return Decoded(columns=columns, bad=good, found=(*found, *misfits))


def _misfits(beside: pa.Array, fields: Sequence[Field]) -> tuple[tuple[Path, str], ...]:
    """Return the types of values that did not fit their columns, by their paths."""
    kinds = {".".join(field.path): field for field in fields}
    found: dict[Path, str] = {}
    for text in beside.drop_null().to_pylist():
        for name, value in json.loads(text).items():
            field = kinds.get(name)
            if field is not None:
                kind = evolved_kind(field.kind, dict(paths_of_value({"": value})).get(("",), ""))
                found[field.path] = evolved_kind(found.get(field.path, kind), kind)
    return tuple(found.items())


def _rescued(text: pa.Array, odd: pa.Array, fields: Sequence[Field]) -> tuple[pa.Array, pa.Array]:
    """Return the rows without values that do not fit, and these values as JSON by path."""
    kind = struct_of(fields)
    places = pc.indices_nonzero(odd).to_pylist()
    payloads = text.to_pylist()
    beside: list[str | None] = [None] * len(text)
    for place in places:
        mended = mend(payloads[place], fields)
        if mended is None:
            continue
        # A text that is not a time, for example, is refused by the parser only.
        if fields and decode_payload(pa.array([mended[0]], pa.binary()), kind).null_count:
            mended = mend(payloads[place], fields, every=True) or mended
        payloads[place], beside[place] = mended
    return pa.array(payloads, pa.binary()), pa.array(beside, pa.string())


def _as_json(payload: pa.Array, decode: Callable[[bytes], Any]) -> pa.Array:
    """Return documents of another format as JSON; undecodable ones become invalid JSON."""
    return pa.array([_one_as_json(item, decode) for item in payload.to_pylist()], pa.binary())


def _one_as_json(payload: bytes, decode: Callable[[bytes], Any]) -> bytes:
    try:
        document = decode(payload)
        return json.dumps(_plain(document), allow_nan=False).encode()
    except (UsageError, ValueError, RecursionError):
        return b""


def _plain(value: Any) -> Any:
    """Return a document that JSON can represent: bytes as base64, no NaN, keys as text."""
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case bytes():
            return b64encode(value).decode()
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _fits(value: Any, field: Field) -> bool:
    """Return whether a value has the type of its column, exactly enough to give a reason."""
    kinds: Mapping[str, tuple[type, ...]] = {
        "double": (int, float),
        "bigint": (int,),
        "decimal(38,0)": (int,),
        "boolean": (bool,),
        "string": (object,),
        "timestamp": (str,),
    }
    if field.kind in kinds:
        fitting = isinstance(value, kinds[field.kind])
        return fitting and (field.kind in ("boolean", "string") or not isinstance(value, bool))
    return isinstance(value, list) and all(
        item is None or _fits(item, Field(path=(), column="", kind=field.kind[6:-1]))
        for item in value
    )


def chained(parts: Iterable[Iterable[tuple[Path, str]]]) -> list[tuple[Path, str]]:
    """Return the fields that several decoders found, each once, with its first type."""
    found: dict[Path, str] = {}
    for path, kind in chain.from_iterable(parts):
        found.setdefault(path, kind)
    return list(found.items())
