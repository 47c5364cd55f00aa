from __future__ import annotations

from siltstone.flight.access import AnyUser, Caller, OpenAccess


def test_an_open_gate_lets_everybody_do_everything() -> None:
    gate = OpenAccess()
    visitor = gate.enter(Caller(address="10.0.0.1"))
    assert isinstance(visitor, AnyUser)
    assert visitor.unlimited
    assert isinstance(gate.enter(Caller(address="", token=gate.token_for(visitor))), AnyUser)
    assert visitor.may_read(["#"]) is None
    assert (visitor.unreadable([b"a"]), visitor.unwritable([b"a"])) == (set(), set())


def test_password_and_token_of_a_caller_are_in_no_text() -> None:
    caller = Caller(address="10.0.0.1", username="u", password=b"secret", token="secret")  # noqa: S106 - nobody's
    assert "secret" not in repr(caller)
