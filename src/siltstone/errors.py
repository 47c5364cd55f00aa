"""All errors that the package raises, as one tree sorted by what the caller must do.

A class exists only where a caller would act differently. Facts are attributes, and come last in the
message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final


class SiltstoneError(Exception):
    """The base class of all errors that Siltstone raises on purpose."""


class RetryError(SiltstoneError):
    """Nothing happened; the same call may succeed later."""


class OverloadedError(RetryError):
    """A limit is reached, for example of data waiting to be written; slow down and call again."""


class ConflictError(RetryError):
    """Another transaction committed first; nothing happened. Read again, then commit again."""


class StorageFullError(RetryError):
    """The disk is full; nothing was written. Free space, then call again."""

    def __init__(self, path: PurePath, *, needed_bytes: int = 0) -> None:
        super().__init__(f"no space left on the disk: path={path} needed_bytes={needed_bytes}")
        self.path = path
        self.needed_bytes = needed_bytes


class QuotaExceededError(RetryError):
    """The database may not grow further; drop sealed slabs or raise its quota."""

    def __init__(
        self, database: str, *, used_bytes: int, quota_bytes: int, needed_bytes: int = 0
    ) -> None:
        if used_bytes < quota_bytes:
            problem = "has no room for these rows in its quota"
            sizes = f"used_bytes={used_bytes} needed_bytes={needed_bytes}"
        else:
            problem = "has reached its quota"
            sizes = f"used_bytes={used_bytes}"
        super().__init__(
            f"database {database!r} {problem}, drop sealed slabs or raise the quota: {sizes} "
            f"quota_bytes={quota_bytes}"
        )
        self.database = database
        self.used_bytes = used_bytes
        self.quota_bytes = quota_bytes
        self.needed_bytes = needed_bytes


class OutcomeUnknownError(SiltstoneError):
    """The operation may have happened; read back before calling again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A requirement and the row that was found; expected None means any value.

    `found` is None if the key has no row.
    """

    topic: str
    time_us: int
    present: bool
    expected: bytes | None
    found: bytes | None

    def __str__(self) -> str:
        """Return one line without the values, which may be large or secret."""
        place = f"topic={self.topic!r} time_us={self.time_us}"
        if not self.present:
            return f"the row exists, but must not exist: {place}"
        if self.found is None:
            return f"the row does not exist, but must exist: {place}"
        return f"the row has another value than required: {place}"


class PreconditionError(SiltstoneError):
    """The newest data did not meet a requirement; nothing happened. See `unmet` to decide again."""

    def __init__(self, unmet: tuple[Unmet, ...]) -> None:
        super().__init__("; ".join(str(one) for one in unmet))
        self.unmet = unmet


class FencedError(PreconditionError):
    """Another owner has taken over the data of this owner; nothing happened. Stop using it."""


class UsageError(SiltstoneError):
    """The call was wrong; fix the code, the input or the settings."""


class InvalidTopicError(UsageError):
    """The topic or filter breaks the rules of MQTT 4.7."""


class NotFoundError(UsageError):
    """The file, database, slab or other object does not exist."""


class ExistsError(UsageError):
    """The object to create exists already."""


class LockedError(UsageError):
    """Another process has this directory open for writing."""


class SlabDroppedError(UsageError):
    """The slab of this stream or iterator was dropped; its rows are gone."""


class PeerError(SiltstoneError):
    """The other side violated its protocol; send it the reason, then close."""

    def __init__(self, message: str, *, reason: int) -> None:
        super().__init__(message)
        self.reason = reason


class MalformedPacketError(PeerError):
    """The bytes are not a valid packet."""

    def __init__(self, message: str, *, reason: int = 0x81) -> None:
        super().__init__(message, reason=reason)


class ProtocolError(PeerError):
    """The packet is valid, but is not allowed now, or not with this content."""

    def __init__(self, message: str, *, reason: int = 0x82) -> None:
        super().__init__(message, reason=reason)


class DiskError(SiltstoneError):
    """The operating system refused a file operation."""

    def __init__(self, path: PurePath, operation: str, reason: str, *, errno: int) -> None:
        super().__init__(f"{operation} failed: {reason}: path={path} errno={errno}")
        self.path = path
        self.operation = operation
        self.reason = reason
        self.errno = errno


class CorruptionError(SiltstoneError):
    """The bytes differ from what was written; restore them, or see `siltstone verify --repair`."""

    def __init__(self, reason: str, *, path: PurePath, offset: int = 0) -> None:
        super().__init__(f"{reason}: path={path} offset={offset}")
        self.reason = reason
        self.path = path
        self.offset = offset


class PoisonedError(SiltstoneError):
    """A write or sync failed, so nothing more is acknowledged; close, reopen, recover."""


class ClosedError(UsageError):
    """The store, database or other object is closed."""


# The errors whose constructor takes only a message, for connections that send the name of an error.
BY_NAME: Final[Mapping[str, type[SiltstoneError]]] = {
    kind.__name__: kind
    for kind in (
        ClosedError,
        ConflictError,
        ExistsError,
        InvalidTopicError,
        LockedError,
        NotFoundError,
        OutcomeUnknownError,
        OverloadedError,
        PoisonedError,
        RetryError,
        SlabDroppedError,
        UsageError,
    )
}
