from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.broker.access.access import Access, Credentials, Hook
from siltstone.broker.access.acl import Acl
from siltstone.broker.access.passwords import Cost, PasswordFile, PasswordHash
from siltstone.broker.listen.flight_listener import BrokerFlightAccess, on_loop, read_certificates
from siltstone.broker.settings.broker import BrokerSettings, FlightSettings
from siltstone.clock import ManualClock
from siltstone.errors import OutcomeUnknownError, UsageError
from siltstone.flight.access import Caller, FlightUser
from siltstone.fs.memory import MemoryFileSystem
from tests.support.broker_core import OPEN, Core

RULES = ["user alice", "topic readwrite plant/#", "topic deny plant/keys/#", "topic subscribe #"]
ENDED = "the token is unknown or has expired: log in again"
CHEAP = Cost(log_rounds=1, block=1)


def access() -> Access:
    hashes = {"alice": PasswordHash.make(b"rock", cost=CHEAP)}
    acl = Acl.parse(RULES, PurePath("acl"))
    return Access(PasswordFile(hashes, ManualClock()), acl, None)


class Gate:
    """The gate of a broker whose loop answers at once, and how long callers were made to wait."""

    def __init__(self, access: Access, **settings: object) -> None:
        self.core = Core(access=access)
        self.core.shell.soon_from_thread = lambda act: act()  # type: ignore[method-assign]
        self.waits: list[float] = []
        chosen = FlightSettings.model_validate(settings)
        self.clock = ManualClock()
        self.gate = BrokerFlightAccess(chosen, self.core.broker, self.waits.append, self.clock)

    def enter(
        self,
        username: str | None = None,
        password: bytes | None = None,
        token: str | None = None,
    ) -> FlightUser | str:
        return self.gate.enter(
            Caller(address="10.0.0.1", username=username, password=password, token=token)
        )


def test_everybody_may_do_everything_where_nothing_is_set() -> None:
    visitor = Gate(OPEN).enter()
    assert not isinstance(visitor, str)
    assert visitor.unlimited
    assert visitor.may_read(["#"]) is None


def test_a_user_has_the_rights_that_mqtt_gives_it() -> None:
    visitor = Gate(access()).enter("alice", b"rock")
    assert not isinstance(visitor, str)
    assert not visitor.unlimited
    assert visitor.may_read(["#", "plant/1"]) is None
    assert visitor.may_read(["plant/1", "plant/keys/#"]) == "plant/keys/#"
    assert visitor.unreadable([b"plant/1", b"plant/keys/1", b"x"]) == {b"plant/keys/1", b"x"}
    assert visitor.unwritable([b"plant/1", b"office"]) == {b"office"}


def test_a_wrong_password_waits_longer_each_time() -> None:
    gate = Gate(access())
    for _ in range(2):
        assert gate.enter("alice", b"sand") == "the user is unknown, or the password wrong"
    # Before the answer, and before the next question: the broker's delay is a second.
    assert gate.waits == [0.0, 1.0, 1.0, 2.0]
    assert not isinstance(gate.enter("alice", b"rock"), str)


def test_a_token_stands_for_the_login_that_it_was_given_for() -> None:
    gate = Gate(access())
    visitor = gate.enter("alice", b"rock")
    assert not isinstance(visitor, str)
    token = gate.gate.token_for(visitor)
    again = gate.enter(token=token)
    assert not isinstance(again, str)
    assert again.unwritable([b"plant/1", b"office"]) == {b"office"}
    gate.clock.advance(3600)
    assert gate.enter(token=token) == ENDED
    other = gate.gate.token_for(visitor)
    gate.gate.tokens.clear()
    assert gate.enter(token=other) == ENDED


@pytest.mark.parametrize("known", [OPEN, access()], ids=["open", "users"])
def test_a_token_that_nobody_knows_is_worth_less_than_none_and_waits_like_a_password(
    known: Access,
) -> None:
    gate = Gate(known, allow_anonymous=True)
    assert [gate.enter(token="x") for _ in range(2)] == [ENDED, ENDED]  # noqa: S106 - nobody's
    assert gate.waits[-1] == 2.0
    assert not isinstance(gate.enter(), str)


def test_a_token_of_another_is_judged_by_the_hook() -> None:
    class Site:
        def authenticate(self, credentials: Credentials) -> str | bool | None:
            if credentials.username != "token":
                return None
            return "alice" if credentials.password == b"site-7" else False

    hooked = Access(None, Acl.parse(RULES, PurePath("acl")), Hook(Site()))
    gate = Gate(hooked)
    visitor = gate.enter(token="site-7")  # noqa: S106 - nobody's
    assert not isinstance(visitor, str)
    assert visitor.unwritable([b"plant/1", b"office"]) == {b"office"}
    assert gate.enter(token="site-8") == ENDED  # noqa: S106 - nobody's


def test_nobody_comes_without_a_name_from_elsewhere() -> None:
    assert Gate(access(), allow_anonymous=False).enter() == (
        "a login is needed: give username and password"
    )


def test_tls_wants_a_login_on_loopback_too_where_there_are_users() -> None:
    gate = Gate(access(), certificate="c", key="k")
    assert not isinstance(gate.enter(), str)
    gate.core.broker.settings = BrokerSettings.model_validate({"access": {"password_file": "p"}})
    assert gate.enter() == "a login is needed: give username and password"
    assert not isinstance(gate.enter("alice", b"rock"), str)


def test_an_error_on_the_loop_is_raised_where_it_was_asked() -> None:
    gate = Gate(OPEN)

    def fail() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        on_loop(gate.core.broker, fail)


def test_an_internal_error_on_the_loop_is_logged_and_reported_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate(OPEN)

    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(OutcomeUnknownError, match=r"^internal error: see the log of the broker$"):
        on_loop(gate.core.broker, fail)
    [record] = caplog.records
    assert record.exc_info is not None
    assert (record.message, repr(record.exc_info[1])) == ("internal_error", "KeyError('lost')")


def test_without_a_certificate_no_tls_is_spoken() -> None:
    assert read_certificates(MemoryFileSystem(), FlightSettings()) is None


def test_a_certificate_that_is_not_there_is_told_of() -> None:
    settings = FlightSettings(certificate="/nowhere.crt", key="/nowhere.key")
    with pytest.raises(UsageError, match=r"certificate cannot be read.*path=/nowhere\.crt"):
        read_certificates(MemoryFileSystem(), settings)
