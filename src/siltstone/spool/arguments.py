"""Checks of the arguments of a spool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath

from siltstone.errors import UsageError
from siltstone.fs.posix import absolute_path


def require_kind(name: str, value: object, kind: type, words: str) -> None:
    """Raise UsageError unless the value is of this type; words describe the type."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be {words}: type={type(value).__name__}")


def check_text(name: str, value: object) -> None:
    """Raise UsageError unless the value is text that has a form in UTF-8."""
    if not isinstance(value, str):
        raise UsageError(f"{name} must be text: {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"{name} must be valid Unicode: position={exc.start}") from exc


def path_given(path: object) -> PurePath:
    """Return the absolute path. Raises: UsageError for a value that cannot be a path."""
    if not isinstance(path, str | PurePath):
        raise UsageError(f"a path must be text or a path: type={type(path).__name__}")
    if "\0" in str(path):
        raise UsageError(f"a path must not have the character U+0000: path={str(path)!r}")
    return absolute_path(path)


def pairs_given(items: object) -> Iterator[tuple[object, str | None]]:
    """Yield sources and their metadata. Raises: UsageError at an item that is not a pair."""
    if not isinstance(items, Iterable):
        raise UsageError(f"items must be pairs of a source and metadata: {_kind(items)}")
    for item in items:
        match item:
            case (source, None | str() as metadata):
                yield source, metadata
            case (_, metadata):
                raise UsageError(f"metadata must be text, or None: {_kind(metadata)}")
            case _:
                raise UsageError(f"an item must be a source and its metadata: {_kind(item)}")


def function_given(function: object) -> None:
    """Raise UsageError unless the value is callable."""
    if not callable(function):
        raise UsageError(f"a function must be callable: {_kind(function)}")


def _kind(value: object) -> str:
    return f"type={type(value).__name__}"
