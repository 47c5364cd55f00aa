"""Inference of the type of JSON payloads from a sample."""

from __future__ import annotations

from collections.abc import Iterable
from json import loads
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from siltstone.errors import UsageError

_INT64: Final = range(-(1 << 63), 1 << 63)
# Deeper payloads are skipped: Spark compares and prints its types by recursion.
_DEPTH_MAX: Final = 100


def infer_type(payloads: Iterable[bytes]) -> StructType:
    """Return the type of JSON objects, inferred from a sample.

    A field of several types becomes a string, which holds the JSON of every value. Payloads that
    Python cannot read, or that are too deep, are skipped.

    Raises: UsageError.
    """
    found: DataType = NullType()
    for payload in payloads:
        try:
            document = loads(payload)
            kind = _type_of(document, 0)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            found = _merged(found, kind)
    if not isinstance(found, StructType):
        raise UsageError("cannot infer a schema: no payload is a JSON object; set payloadSchema")
    return _settled_struct(found)


def _type_of(value: Any, depth: int) -> DataType:
    if depth > _DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    match value:
        case None:
            return NullType()
        case bool():
            return BooleanType()
        case int():
            return LongType() if value in _INT64 else DoubleType()
        case float():
            return DoubleType()
        case str():
            return StringType()
        case list():
            element: DataType = NullType()
            for item in value:
                element = _merged(element, _type_of(item, depth + 1))
            return ArrayType(element)
        case _:
            fields = [StructField(key, _type_of(item, depth + 1)) for key, item in value.items()]
            return StructType(fields)


def _merged(one: DataType, other: DataType) -> DataType:
    """Return a type that can hold values of both."""
    if isinstance(other, NullType) or one == other:
        return one
    match one, other:
        case NullType(), _:
            return other
        case (LongType(), DoubleType()) | (DoubleType(), LongType()):
            return DoubleType()
        case ArrayType(), ArrayType():
            return ArrayType(_merged(one.elementType, other.elementType))
        case StructType(), StructType():
            fields = {field.name: field.dataType for field in one.fields}
            for field in other.fields:
                known = fields.get(field.name, NullType())
                fields[field.name] = _merged(known, field.dataType)
            return StructType([StructField(key, kind) for key, kind in fields.items()])
        case _:
            return StringType()


def _settled(kind: DataType) -> DataType:
    """Return a type without unknown parts: a field that was always null becomes a string."""
    match kind:
        case NullType():
            return StringType()
        case ArrayType():
            return ArrayType(_settled(kind.elementType))
        case StructType():
            return _settled_struct(kind)
        case _:
            return kind


def _settled_struct(kind: StructType) -> StructType:
    return StructType([StructField(item.name, _settled(item.dataType)) for item in kind.fields])
