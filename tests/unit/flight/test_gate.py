from __future__ import annotations

from siltstone.flight.gate import Anybody, Caller, OpenGate


def test_an_open_gate_lets_everybody_do_everything() -> None:
    caller = Caller(address="10.0.0.1", username=None, password=None)
    visitor = OpenGate().enter(caller)
    assert isinstance(visitor, Anybody)
    assert visitor.unlimited
    assert visitor.may_read(["#"]) is None
    assert (visitor.unreadable([b"a"]), visitor.unwritable([b"a"])) == (set(), set())


def test_the_password_of_a_caller_is_in_no_text() -> None:
    caller = Caller(address="10.0.0.1", username="u", password=b"secret")
    assert "secret" not in repr(caller)
