"""Every error that leaves the package, as one tree sorted by what the caller must do.

A class exists only where a caller would act differently; the facts are attributes and stand last in
the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


class SiltstoneError(Exception):
    """The root: catching it catches everything Siltstone raises on purpose."""


class RetryError(SiltstoneError):
    """Nothing happened; the same call may succeed later."""


class OverloadedError(RetryError):
    """Too much is waiting to be written; slow down and call again."""


class ConflictError(RetryError):
    """Another transaction came first; nothing happened. Read again, then commit again."""


class StorageFullError(RetryError):
    """The disk has no room for this; nothing was written. Free space, then call again."""

    def __init__(self, path: PurePath, *, needed_bytes: int = 0) -> None:
        super().__init__(f"no space left on the disk: path={path} needed_bytes={needed_bytes}")
        self.path = path
        self.needed_bytes = needed_bytes


class QuotaExceededError(RetryError):
    """The database may not grow further; drop sealed slabs or raise its quota."""

    def __init__(self, database: str, *, used_bytes: int, quota_bytes: int) -> None:
        super().__init__(
            f"database {database!r} has reached its quota, drop sealed slabs or raise the quota: "
            f"used_bytes={used_bytes} quota_bytes={quota_bytes}"
        )
        self.database = database
        self.used_bytes = used_bytes
        self.quota_bytes = quota_bytes


class OutcomeUnknownError(SiltstoneError):
    """It may have happened; read back before calling again."""


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
            return f"the row exists, but must not exist: {place}"
        if self.found is None:
            return f"the row does not exist, but must exist: {place}"
        return f"the row has another value than required: {place}"


class PreconditionError(SiltstoneError):
    """A requirement was not met by the newest data; nothing happened. Decide anew by `unmet`."""

    def __init__(self, unmet: tuple[Unmet, ...]) -> None:
        super().__init__("; ".join(str(one) for one in unmet))
        self.unmet = unmet


class FencedError(PreconditionError):
    """Somebody else has taken over what this owner held; nothing happened. Let go of it."""


class UsageError(SiltstoneError):
    """The call was wrong; fix the code, the input or the settings."""


class InvalidTopicError(UsageError):
    """The topic or filter breaks the rules of MQTT 4.7."""


class NotFoundError(UsageError):
    """What was named does not exist: a file, a database, a slab."""


class ExistsError(UsageError):
    """What was to be created exists already."""


class LockedError(UsageError):
    """Another process has this directory open for writing."""


class SlabDroppedError(UsageError):
    """The slab of this stream or iterator was dropped; its rows are gone."""


class PeerError(SiltstoneError):
    """The other side broke the rules of its protocol; send it the reason, then close."""

    def __init__(self, message: str, *, reason: int) -> None:
        super().__init__(message)
        self.reason = reason


class MalformedPacketError(PeerError):
    """The bytes cannot be read as a packet."""

    def __init__(self, message: str, *, reason: int = 0x81) -> None:
        super().__init__(message, reason=reason)


class ProtocolError(PeerError):
    """The packet can be read, but may not be sent, or not with this content."""

    def __init__(self, message: str, *, reason: int = 0x82) -> None:
        super().__init__(message, reason=reason)


class DiskError(SiltstoneError):
    """The operating system refused a file operation."""

    def __init__(self, path: PurePath, operation: str, reason: str, *, errno: int) -> None:
        super().__init__(f"{operation} failed: {reason}: path={path} errno={errno}")
        self.path = path
        self.operation = operation
        self.errno = errno


class CorruptionError(SiltstoneError):
    """The bytes are not what was written; restore them, or see `siltstone verify --repair`."""

    def __init__(self, reason: str, *, path: PurePath, offset: int = 0) -> None:
        super().__init__(f"{reason}: path={path} offset={offset}")
        self.reason = reason
        self.path = path
        self.offset = offset


class PoisonedError(SiltstoneError):
    """A sync failed, so nothing more is acknowledged here; close, reopen, recover."""


class ClosedError(UsageError):
    """The store or database is closed."""
