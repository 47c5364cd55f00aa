"""Run a transaction again after a conflict, with a pause that grows and has a random part.

The random part prevents two transactions from colliding again; the growth reduces the load of many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

from siltstone.errors import (
    ConflictError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    RetryError,
    UsageError,
)
from siltstone.store.tx.arguments import whole_number

T = TypeVar("T")


class Committable(Protocol):
    """A transaction of this process, or of a running broker, that commits at the end of a block."""

    committed: bool

    @property
    def serial(self) -> int: ...

    @property
    def duplicate(self) -> bool: ...

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


Tx = TypeVar("Tx", bound=Committable)

PAUSE_MIN: Final = 0.001
PAUSE_MAX: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Generic[T]):
    """The result of a function, and how its transaction was committed."""

    value: T
    serial: int
    attempts: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How to wait between attempts; `chance` returns random numbers of [0, 1)."""

    pause: Callable[[float], None]
    chance: Callable[[], float]


def pause_before(attempt: int, chance: float) -> float:
    """Return the pause in seconds before an attempt; the second attempt has number 1.

    The pause is between half of the attempt's maximum and the maximum.
    """
    share = min(PAUSE_MIN * 2.0 ** min(attempt - 1, 30), PAUSE_MAX)
    return share * (0.5 + 0.5 * chance)


def transact(
    begin: Callable[[], Tx],
    function: Callable[[Tx], T],
    *,
    retries: int,
    has_id: bool,
    retry: Retry,
) -> Committed[T]:
    """Run a function in a transaction and commit it; after a conflict, run it again in a new one.

    With an id it is also repeated after an unknown outcome: it cannot be committed twice.

    Raises: the error of the last attempt; OutcomeUnknownError if an earlier attempt may have been
    committed and no later one could find out.
    """
    if whole_number("retries", retries) < 0:
        raise UsageError(f"retries must be 0 or more: retries={retries}")
    unknown: OutcomeUnknownError | None = None
    attempt = 0
    while True:
        if attempt:
            retry.pause(pause_before(attempt, retry.chance()))
        attempt += 1
        transaction = begin()
        try:
            with transaction:
                value = function(transaction)
            return Committed(
                value=value,
                serial=transaction.serial,
                attempts=attempt,
                duplicate=transaction.duplicate,
            )
        except (OutcomeUnknownError, PoisonedError, RetryError) as exc:
            if transaction.committed:
                # An error of a callback, after the commit.
                raise
            unknown = _judged(exc, unknown, has_id=has_id, is_last=attempt > retries)


def _judged(
    error: OutcomeUnknownError | PoisonedError | RetryError,
    unknown: OutcomeUnknownError | None,
    *,
    has_id: bool,
    is_last: bool,
) -> OutcomeUnknownError | None:
    """Return the unknown outcome that the next attempt must settle.

    Raises: the error if there is no next attempt; the unknown outcome if it cannot be settled.
    """
    match error:
        case ConflictError() if not is_last:
            # Ids are checked before conflicts, so no earlier attempt was committed either.
            return None
        case OutcomeUnknownError() if has_id and not is_last:
            return error
        case OverloadedError() if not is_last:
            return unknown
        case ConflictError() | OutcomeUnknownError():
            raise error
        case _:
            if unknown is not None:
                raise unknown from error
            raise error
