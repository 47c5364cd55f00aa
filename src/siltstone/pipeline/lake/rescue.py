"""Values that do not fit their columns, taken out of a document and kept beside it.

    {"v": "offline", "id": 18446744073709551617, "unit": "C"}     v is a double, id a bigint
    {"unit": "C"}                                                 what the columns are read from
    {"v":"offline","id":18446744073709551617}                     what `_rescued` has

Numbers keep the digits that were sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from siltstone.pipeline.lake.fields import EXACT_MAX, Field, Path
from siltstone.scan.columns.payloads import Number, exact_document, json_text

_INT64: Final = range(-(1 << 63), 1 << 63)
_DIGITS: Final = 38


def mend(
    payload: bytes, fields: Sequence[Field], *, every: bool = False
) -> tuple[bytes, str | None] | None:
    """Return a document without the values that do not fit, and these values as JSON.

    They are None if all values fit. With `every`, no value of a field fits, except text. Return
    None if the payload is not an object.
    """
    try:
        document = exact_document(payload)
        if not isinstance(document, dict):
            return None
        taken: dict[str, Any] = {}
        for field in fields:
            path = _misfit(document, field, every=every)
            if path is not None:
                document, value = _without(document, path)
                taken[".".join(path)] = value
        return (json_text(document).encode(), json_text(taken)) if taken else (payload, None)
    except (ValueError, RecursionError):
        return None


def _misfit(document: Mapping[str, Any], field: Field, *, every: bool) -> Path | None:
    """Return the path of the value that does not fit a field; None if it fits."""
    value: Any = document
    for depth, word in enumerate(field.path):
        if not isinstance(value, dict):
            return field.path[:depth]
        value = value.get(word)
        if value is None:
            return None
    if every and not (field.kind == "string" and isinstance(value, str)):
        return field.path
    return None if _fits(value, field.kind) else field.path


def _without(document: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], Any]:
    """Return a copy without a value, and the value."""
    changed = dict(document)
    if len(path) == 1:
        return changed, changed.pop(path[0])
    changed[path[0]], value = _without(changed[path[0]], path[1:])
    return changed, value


def _fits(value: Any, kind: str) -> bool:
    if value is None or kind == "string":
        return True
    if kind.startswith("array<"):
        return isinstance(value, list) and all(_fits(item, kind[6:-1]) for item in value)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "timestamp":
        return isinstance(value, str) and not isinstance(value, Number)
    if not isinstance(value, Number):
        return False
    whole = value.removeprefix("-").isdecimal()
    match kind:
        case "bigint":
            return whole and int(value) in _INT64
        case "double":
            return not whole or _is_exact(int(value))
        case _:
            return whole and len(value.removeprefix("-")) <= _DIGITS


def _is_exact(value: int) -> bool:
    """Return whether a double holds an integer exactly."""
    if abs(value) <= EXACT_MAX:
        return True
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
