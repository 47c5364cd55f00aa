from __future__ import annotations

import pytest

from siltstone.errors import (
    ConflictError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    PreconditionError,
    QuotaExceededError,
    SiltstoneError,
    UsageError,
)
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.tx.retry import PAUSE_MAX, Committed, Retry, pause_before, transact
from siltstone.store.tx.transaction import Transaction
from tests.support.tx_builders import World


class Script:
    """A function that fails as scripted before it writes, and counts its pauses."""

    def __init__(self, *errors: SiltstoneError) -> None:
        self.errors = list(errors)
        self.pauses: list[float] = []
        self.calls = 0

    def __call__(self, tx: Transaction) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        tx.write("a", b"%d" % self.calls)
        return self.calls

    def run(
        self, database: KeyValueDatabase, *, retries: int, has_id: bool = False
    ) -> Committed[int]:
        retry = Retry(pause=self.pauses.append, chance=lambda: 0.5)
        return transact(database.transaction, self, retries=retries, has_id=has_id, retry=retry)


CONFLICT = ConflictError("conflict")
OVERLOADED = OverloadedError("overloaded")
UNKNOWN = OutcomeUnknownError("unknown")
POISONED = PoisonedError("poisoned")


def test_without_a_conflict_it_runs_once() -> None:
    with World(timed=False) as world:
        script = Script()
        assert script.run(world.database, retries=0) == Committed(
            value=1, serial=1, attempts=1, duplicate=False
        )
        assert script.pauses == []


@pytest.mark.parametrize(
    "error", [CONFLICT, OVERLOADED, UNKNOWN], ids=["conflict", "over", "unknown"]
)
def test_what_a_callback_raises_behind_the_commit_does_not_repeat_it(error: SiltstoneError) -> None:
    def call_back(_: int) -> None:
        raise error

    def add_one(tx: Transaction) -> None:
        tx.write("n", b"%d" % (int(tx.get("n") or b"0") + 1))
        tx.on_commit(call_back)

    with World(timed=False) as world:
        with pytest.raises(type(error)):
            world.database.transact(add_one, retries=5, id="one")
        assert world.database.get("n") == b"1"


def test_it_runs_again_with_growing_pauses_until_it_is_committed() -> None:
    with World(timed=False) as world:
        script = Script(CONFLICT, OVERLOADED, CONFLICT)
        assert script.run(world.database, retries=3) == Committed(
            value=4, serial=1, attempts=4, duplicate=False
        )
        assert script.pauses == [0.00075, 0.0015, 0.003]
        assert world.database.get("a") == b"4"


@pytest.mark.parametrize("error", [CONFLICT, OVERLOADED])
def test_when_there_are_no_more_retries_the_last_error_is_raised(error: SiltstoneError) -> None:
    with World(timed=False) as world:
        script = Script(error, error, error)
        with pytest.raises(type(error)):
            script.run(world.database, retries=2)
        assert (script.calls, world.database.get("a")) == (3, None)


@pytest.mark.parametrize(
    "error",
    [
        PreconditionError(()),
        QuotaExceededError("test", used_bytes=2, quota_bytes=1),
        UsageError("wrong"),
        POISONED,
        UNKNOWN,
    ],
)
def test_what_another_attempt_cannot_mend_is_raised_at_once(error: SiltstoneError) -> None:
    with World(timed=False) as world:
        script = Script(error)
        with pytest.raises(type(error)):
            script.run(world.database, retries=5)
        assert script.calls == 1


def test_with_an_id_an_unknown_outcome_is_tried_again() -> None:
    with World(timed=False) as world:
        script = Script(UNKNOWN, UNKNOWN)
        assert script.run(world.database, retries=2, has_id=True).attempts == 3
        script = Script(UNKNOWN, UNKNOWN)
        with pytest.raises(OutcomeUnknownError):
            script.run(world.database, retries=1, has_id=True)


@pytest.mark.parametrize("error", [POISONED, OVERLOADED])
def test_an_outcome_stays_unknown_when_no_later_attempt_could_find_out(
    error: SiltstoneError,
) -> None:
    with World(timed=False) as world:
        script = Script(UNKNOWN, error, error)
        with pytest.raises(OutcomeUnknownError) as caught:
            script.run(world.database, retries=2, has_id=True)
        assert caught.value is UNKNOWN
        assert caught.value.__cause__ is error


def test_a_conflict_behind_an_unknown_outcome_says_that_it_did_not_happen() -> None:
    with World(timed=False) as world:
        script = Script(UNKNOWN, CONFLICT)
        with pytest.raises(ConflictError):
            script.run(world.database, retries=1, has_id=True)


def test_retries_are_not_negative() -> None:
    with World(timed=False) as world, pytest.raises(UsageError, match="retries=-1"):
        Script().run(world.database, retries=-1)


def test_pauses_differ_by_chance_and_end_growing() -> None:
    assert [pause_before(1, chance) for chance in (0.0, 0.5, 1.0)] == [0.0005, 0.00075, 0.001]
    assert [pause_before(attempt, 1.0) for attempt in (1, 2, 3, 8)] == [0.001, 0.002, 0.004, 0.128]
    assert pause_before(9, 1.0) == PAUSE_MAX
    assert pause_before(10_000, 1.0) == PAUSE_MAX
