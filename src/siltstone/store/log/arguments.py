"""Check the types of arguments of public calls."""

from __future__ import annotations

from typing import Final

from siltstone.errors import UsageError

# What an acknowledged row survives: a power cut, a crash of the process, nothing.
DURABILITIES: Final = ("synced", "written", "none")


def require_kind(name: str, value: object, kind: type, words: str) -> None:
    """Raise UsageError unless the value has this type; `words` describes the type."""
    # In Python a bool is an int, but here it is an error.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{name} must be {words}: type={type(value).__name__}")


def require_number(name: str, value: object) -> None:
    """Raise UsageError unless the value is a whole number."""
    require_kind(name, value, int, "a whole number")


def require_span(since_us: object, until_us: object) -> None:
    """Raise UsageError unless both are times in µs; the end may be None."""
    require_number("since_us", since_us)
    if until_us is not None:
        require_number("until_us", until_us)


def require_durability(durability: object) -> None:
    """Raise UsageError unless a durability is known."""
    if durability not in DURABILITIES:
        raise UsageError(f"durability must be one of {DURABILITIES}: durability={durability!r}")
