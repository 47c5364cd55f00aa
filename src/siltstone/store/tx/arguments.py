"""Check the types of arguments of key-value calls. Compiled.

The arguments are declared as objects: a compiled function refuses a value of another type than the
declared one with a TypeError, before its body runs.
"""

from __future__ import annotations

from typing import Final

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.topic.grammar import TopicFilter

TIMEOUT_MAX: Final = 1_000_000_000


def whole_number(name: str, value: object) -> int:
    """Return an argument that is a whole number. Raises: UsageError."""
    # In Python a bool is an int, but here it is an error.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise UsageError(f"{name} must be a whole number: type={type(value).__name__}")


def text_of(name: str, value: object) -> str:
    """Return an argument that is text. Raises: UsageError."""
    if isinstance(value, str):
        return value
    raise UsageError(f"{name} must be text: type={type(value).__name__}")


def bytes_of(name: str, value: object) -> bytes:
    """Return an argument that is bytes. Raises: UsageError."""
    if isinstance(value, bytes):
        return value
    raise UsageError(f"{name} must be bytes: type={type(value).__name__}")


def key_of(name: str, value: object) -> bytes:
    """Return an argument that is text as UTF-8. Raises: UsageError."""
    text = text_of(name, value)
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"{name} has a lone surrogate: {name}={text[:80]!a}") from exc


def topic_of(value: object) -> bytes:
    """Return a topic as UTF-8, its grammar unchecked. Raises: UsageError, InvalidTopicError."""
    topic = text_of("topic", value)
    try:
        return topic.encode()
    except UnicodeEncodeError as exc:
        raise InvalidTopicError(f"topic has a lone surrogate: topic={topic[:80]!a}") from exc


def filter_of(value: object) -> TopicFilter:
    """Return a filter. Raises: InvalidTopicError."""
    if isinstance(value, str):
        return TopicFilter.parse(value)
    raise InvalidTopicError(f"filter must be text: type={type(value).__name__}")


def timeout_of(value: object) -> float | None:
    """Return a time to wait in seconds, None for ever. Raises: UsageError."""
    if value is None:
        return None
    # Each type by itself: compiled code compares two numbers of one type directly.
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= TIMEOUT_MAX:
            return float(value)
    elif isinstance(value, float):
        if 0.0 <= value <= TIMEOUT_MAX:
            return value
    else:
        raise UsageError(f"timeout must be a number of seconds: type={type(value).__name__}")
    raise UsageError(f"timeout must be from 0 to {TIMEOUT_MAX:,} seconds, got {value}")
