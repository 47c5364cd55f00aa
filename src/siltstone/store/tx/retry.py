"""Run a transaction again after a conflict, with a pause that grows and has a random part.

The random part prevents two transactions from colliding again; the growth reduces the load of many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from siltstone.errors import (
    ConflictError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    UsageError,
)
from siltstone.store.tx.arguments import whole_number
from siltstone.store.tx.transaction import Transaction

T = TypeVar("T")

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
    begin: Callable[[], Transaction],
    function: Callable[[Transaction], T],
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
        except ConflictError:
            # Ids are checked before conflicts, so no earlier attempt was committed either. An error
            # of a callback, after the commit, is passed on.
            if attempt > retries or transaction.committed:
                raise
            unknown = None
        except OutcomeUnknownError as exc:
            if attempt > retries or not has_id or transaction.committed:
                raise
            unknown = exc
        except (OverloadedError, PoisonedError) as exc:
            if transaction.committed:
                raise
            if unknown is not None and (attempt > retries or isinstance(exc, PoisonedError)):
                raise unknown from exc
            if attempt > retries or isinstance(exc, PoisonedError):
                raise
