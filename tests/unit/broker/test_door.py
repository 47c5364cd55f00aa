from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.broker.access import Access
from siltstone.broker.acl import Acl
from siltstone.broker.door import BrokerGate, on_loop, read_certificates
from siltstone.broker.passwords import Cost, PasswordFile, PasswordHash
from siltstone.broker.settings import FlightSettings
from siltstone.clock import ManualClock
from siltstone.errors import UsageError
from siltstone.flight.gate import Caller, Visitor
from tests.support.broker_core import OPEN, Core

RULES = ["user alice", "topic readwrite plant/#", "topic deny plant/keys/#", "topic subscribe #"]
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
        self.gate = BrokerGate(chosen, self.core.broker, self.waits.append)

    def enter(self, username: str | None = None, password: bytes | None = None) -> Visitor | str:
        return self.gate.enter(Caller(address="10.0.0.1", username=username, password=password))


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


def test_nobody_comes_without_a_name_from_elsewhere() -> None:
    assert Gate(access(), allow_anonymous=False).enter() == (
        "a login is needed: give username and password"
    )


def test_an_error_on_the_loop_is_raised_where_it_was_asked() -> None:
    gate = Gate(OPEN)

    def fail() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        on_loop(gate.core.broker, fail)


def test_without_a_certificate_no_tls_is_spoken() -> None:
    assert read_certificates(FlightSettings()) is None


def test_a_certificate_that_is_not_there_is_told_of() -> None:
    settings = FlightSettings(certificate="/nowhere.crt", key="/nowhere.key")
    with pytest.raises(UsageError, match=r"certificate cannot be read.*path=/nowhere\.crt"):
        read_certificates(settings)
