"""What a transaction may end with beside a commit, sorted by what the caller must do."""

from __future__ import annotations

from dataclasses import dataclass

from siltstone.errors import RetryError, SiltstoneError


class ConflictError(RetryError):
    """Another transaction came first; nothing happened. Read again, then commit again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A requirement and what was found in its place; None is no row, expected None is any value."""

    topic: str
    time_us: int
    present: bool
    expected: bytes | None
    found: bytes | None

    def __str__(self) -> str:
        """Say it in one line, without the values: they may be large, or secret."""
        place = f"topic={self.topic!r} time_us={self.time_us}"
        if not self.present:
            return f"present, but was required to be absent: {place}"
        if self.found is None:
            return f"absent, but was required to be present: {place}"
        return f"present, but with another value than required: {place}"


class PreconditionError(SiltstoneError):
    """A requirement was not met by the newest data; nothing happened. Decide anew by `unmet`."""

    def __init__(self, unmet: tuple[Unmet, ...]) -> None:
        super().__init__("; ".join(str(one) for one in unmet))
        self.unmet = unmet


class FencedError(PreconditionError):
    """Somebody else has taken over what this owner held; nothing happened. Let go of it."""
