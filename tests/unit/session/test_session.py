from __future__ import annotations

import pytest

from siltstone.session.session import Session
from tests.support.receiver import make_outbox


def test_a_session_begins_with_nothing() -> None:
    outbox = make_outbox()
    session = Session("é", "u", outbox)
    assert (session.client_id, session.publisher, session.user) == ("é", b"\xc3\xa9", "u")
    assert session.outbox is outbox
    assert (session.received.packet_ids, session.dispatched) == (set(), {})
    assert (session.subscriptions, session.expiry_seconds) == ({}, 0)


def test_who_waits_is_called_once_when_the_last_outcome_is_known() -> None:
    session = Session("c", "", make_outbox())
    called: list[str] = []
    session.unsettled = 2
    session.when_settled.append(lambda: called.append("first"))
    session.when_settled.append(lambda: called.append("second"))
    session.settled()
    assert called == []
    session.settled()
    assert called == ["first", "second"]
    session.unsettled += 1
    session.settled()
    assert called == ["first", "second"]
    assert (session.unsettled, session.when_settled) == (0, [])


def test_who_is_called_may_wait_again() -> None:
    session = Session("c", "", make_outbox())
    called: list[int] = []

    def act() -> None:
        called.append(session.unsettled)
        if len(called) < 2:
            session.unsettled += 1
            session.when_settled.append(act)

    session.unsettled = 1
    session.when_settled.append(act)
    session.settled()
    assert called == [0]
    session.settled()
    assert called == [0, 0]


def test_who_fails_when_it_is_called_keeps_no_other_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RuntimeError("on purpose")

    session = Session("c", "", make_outbox())
    called: list[str] = []
    session.unsettled = 1
    session.when_settled.append(lambda: called.append("first"))
    session.when_settled.append(fail)
    session.when_settled.append(lambda: called.append("last"))
    session.settled()
    assert called == ["first", "last"]
    assert (session.unsettled, session.when_settled) == (0, [])
    assert [record.message for record in caplog.records] == ["internal_error"]
