from __future__ import annotations

import threading
from threading import Lock, Thread

import pytest

from siltstone.errors import OutcomeUnknownError, PoisonedError
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import NO_ID, Operations


def ticket() -> CommitTicket:
    return CommitTicket(Operations(1, 1, True, NO_ID), Lock())  # noqa: FBT003 - by position


def settle(found: CommitTicket, error: Exception | None = None) -> None:
    found.resolve(error, None)


def test_a_ticket_has_the_outcome_of_its_transaction() -> None:
    found = ticket()
    assert (found.done, found.error, found.serial, found.duplicate) == (False, None, -1, False)
    found.operations.serial = 7
    found.operations.duplicate = True
    settle(found)
    assert found.wait() is found
    assert (found.done, found.error, found.serial, found.duplicate) == (True, None, 7, True)


def test_an_outcome_that_does_not_come_in_time_is_unknown() -> None:
    found = ticket()
    with pytest.raises(OutcomeUnknownError, match="the outcome is not known after 0 seconds"):
        found.wait(0)
    settle(found)
    assert found.wait(0) is found


def test_an_error_is_raised_to_everybody_who_waits() -> None:
    found = ticket()
    settle(found, PoisonedError("poisoned"))
    for _ in range(2):
        with pytest.raises(PoisonedError):
            found.wait()


def test_all_who_wait_are_told() -> None:
    found = ticket()
    with pytest.raises(OutcomeUnknownError):
        found.wait(0)
    threads = [Thread(target=found.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    settle(found)
    for thread in threads:
        thread.join()
    assert found.done


def test_callbacks_are_called_when_it_is_known_and_at_once_when_it_is() -> None:
    found = ticket()
    told: list[tuple[str, CommitTicket]] = []
    found.on_done(lambda done: told.append(("first", done)))
    found.on_done(lambda done: told.append(("second", done)))
    assert told == []
    settle(found, PoisonedError("poisoned"))
    found.on_done(lambda done: told.append(("late", done)))
    assert told == [("first", found), ("second", found), ("late", found)]


def test_a_callback_that_fails_keeps_nobody_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: failures.append(args.exc_type))
    found = ticket()
    told: list[CommitTicket] = []

    def fail(done: CommitTicket) -> None:
        raise KeyError(done.serial)

    found.on_done(fail)
    found.on_done(told.append)
    settle(found)
    assert (told, failures) == ([found], [KeyError])
