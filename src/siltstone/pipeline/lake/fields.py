"""The fields of decoded payloads, their types, and their columns.

A number is a double: a value of 21 today may be 21.5 tomorrow, and a column cannot change its type.
Integers that a double would change are a bigint or a decimal. The fields of nested objects are
columns too: a_b for b in a. An array of one plain type becomes an array. Other arrays, and fields
that were always null, stay in the payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa

from siltstone.pipeline.lake.names import field_column

FIELDS_MAX: Final = 400
DEPTH_MAX: Final = 5
KINDS: Final[Mapping[str, pa.DataType]] = {
    "double": pa.float64(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "decimal(38,0)": pa.decimal128(38, 0),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<double>": pa.list_(pa.float64()),
    "array<bigint>": pa.list_(pa.int64()),
    "array<boolean>": pa.list_(pa.bool_()),
    "array<string>": pa.list_(pa.string()),
}
Path = tuple[str, ...]
# The largest integer up to which a double is exact.
EXACT_MAX: Final = 1 << 53
_INT64: Final = range(-(1 << 63), 1 << 63)
_DECIMAL: Final = 10**38
# An integer that a double holds exactly; a column of these is a double.
_SMALL: Final = "integer"
_WIDER: Final[Mapping[frozenset[str], str]] = {
    frozenset({_SMALL, "double"}): "double",
    frozenset({_SMALL, "bigint"}): "bigint",
    frozenset({_SMALL, "decimal(38,0)"}): "decimal(38,0)",
    frozenset({"bigint", "decimal(38,0)"}): "decimal(38,0)",
    frozenset({"bigint", "double"}): "double",
    frozenset({"decimal(38,0)", "double"}): "double",
}
# A value that does not fit a double is text, or an integer that a double would change.
_EVOLVED: Final[Mapping[tuple[str, str], str]] = {
    ("bigint", "double"): "double",
    ("bigint", "decimal(38,0)"): "decimal(38,0)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of payloads by its path, and its column.

    `wanted` is the type that the column gets when its table is rewritten; empty for none.
    """

    path: Path
    column: str
    kind: str
    wanted: str = ""


def struct_of(fields: Sequence[Field]) -> pa.StructType:
    """Return the struct type to parse payloads; of two conflicting fields it has the first."""
    tree: dict[str, Any] = {}
    for field in fields:
        node: Any = tree
        for word in field.path[:-1]:
            node = node.setdefault(word, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.setdefault(field.path[-1], KINDS[field.kind])
    return _struct(tree)


def _struct(tree: Mapping[str, Any]) -> pa.StructType:
    return pa.struct(
        [
            pa.field(name, _struct(kind) if isinstance(kind, dict) else kind)
            for name, kind in tree.items()
        ]
    )


def column_of(decoded: pa.Array, path: Path, kind: pa.DataType) -> pa.Array:
    """Return a field of decoded structs; nulls if it has another type."""
    for word in path:
        if not pa.types.is_struct(decoded.type) or decoded.type.get_field_index(word) < 0:
            return pa.nulls(len(decoded), kind)
        # `flatten` applies the nulls of the struct, which `field` ignores.
        decoded = decoded.flatten()[decoded.type.get_field_index(word)]
    return decoded if decoded.type == kind else pa.nulls(len(decoded), kind)


def kind_of(found: pa.DataType) -> str | None:
    """Return the column type for a type that Arrow inferred; None if it stays in the payload."""
    if pa.types.is_list(found):
        element = kind_of(found.value_type)
        return None if element is None or element.startswith("array") else f"array<{element}>"
    if pa.types.is_boolean(found):
        return "boolean"
    if pa.types.is_integer(found) or pa.types.is_floating(found):
        return "double"
    if pa.types.is_string(found) or pa.types.is_timestamp(found):
        return "string"
    return None


def paths_of_type(kind: pa.StructType, above: Path = ()) -> Iterable[tuple[Path, str]]:
    """Yield the fields of an inferred type that can be columns."""
    for field in kind:
        path = (*above, field.name)
        if pa.types.is_struct(field.type):
            if len(path) < DEPTH_MAX:
                yield from paths_of_type(field.type, path)
        elif (found := kind_of(field.type)) is not None:
            yield path, found


def paths_of_value(value: Mapping[str, Any], above: Path = ()) -> Iterable[tuple[Path, str]]:
    """Yield the fields of one document that can be columns; `wider` and `settled` complete them."""
    for name, item in value.items():
        if not _is_text(name):
            continue
        path = (*above, name)
        if isinstance(item, dict):
            if len(path) < DEPTH_MAX:
                yield from paths_of_value(item, path)
        elif (found := _kind_of_value(item)) is not None:
            yield path, found


def _is_text(name: str) -> bool:
    # JSON may contain a lone surrogate, which cannot be part of a file or column name.
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _kind_of_value(value: Any) -> str | None:
    match value:
        case bool():
            return "boolean"
        case int():
            return _kind_of_integer(value)
        case float():
            return "double"
        case str():
            return "string"
        case list():
            kinds = {_kind_of_value(item) for item in value if item is not None}
            element = _one_kind(kinds) if kinds and None not in kinds else None
            return None if f"array<{settled(element)}>" not in KINDS else f"array<{element}>"
        case _:
            return None


def _kind_of_integer(value: int) -> str:
    if abs(value) <= EXACT_MAX:
        return _SMALL
    if value in _INT64:
        return "bigint"
    return "decimal(38,0)" if abs(value) < _DECIMAL else "string"


def _one_kind(kinds: Iterable[str | None]) -> str | None:
    """Return the kind that holds all of these kinds; None if there is none."""

    def widened(one: str | None, other: str | None) -> str | None:
        if one == other or one is None or other is None:
            return one if one == other else None
        return _WIDER.get(frozenset({one, other}))

    return reduce(widened, kinds)


def wider(one: str, other: str) -> str:
    """Return the kind that holds the numbers of both; the first if one is not a number."""
    if one.startswith("array<") and other.startswith("array<"):
        element = _WIDER.get(frozenset({one[6:-1], other[6:-1]}))
        return one if f"array<{settled(element)}>" not in KINDS else f"array<{element}>"
    return _WIDER.get(frozenset({one, other}), one)


def evolved(fields: Sequence[Field], found: Mapping[Path, str]) -> tuple[Field, ...]:
    """Return fields with types that also hold the found values; text holds everything."""
    return tuple(
        replace(field, kind=evolved_kind(field.kind, found[field.path]))
        if field.path in found
        else field
        for field in fields
    )


def evolved_kind(kind: str, found: str) -> str:
    """Return the type of a column for its values and one that did not fit; text holds all."""
    return kind if kind == found else _EVOLVED.get((kind, found), "string")


def settled(kind: str | None) -> str | None:
    """Return the column type of a kind: small integers become doubles."""
    return None if kind is None else kind.replace(_SMALL, "double")


def extended(
    fields: Sequence[Field], found: Iterable[tuple[Path, str]], taken: Iterable[str]
) -> tuple[Field, ...]:
    """Return the fields plus the new ones among `found`, each with a free column name.

    A known field keeps its type, so the first type wins.
    """
    known = {field.path for field in fields}
    all_fields, names = list(fields), [*taken, *(field.column for field in fields)]
    for path, kind in found:
        excluded = any(path[: len(old)] == old or old[: len(path)] == path for old in known)
        if excluded or len(all_fields) >= FIELDS_MAX:
            continue
        column = field_column(path, names)
        known.add(path)
        names.append(column)
        all_fields.append(Field(path=path, column=column, kind=kind))
    return tuple(all_fields)
