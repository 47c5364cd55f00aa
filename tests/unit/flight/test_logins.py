from __future__ import annotations

from base64 import b64encode

import pytest

from siltstone.flight.access import Caller
from siltstone.flight.logins import CallLogin, parse_caller

ALICE = b64encode("alice:a:b€".encode()).decode()


@pytest.mark.parametrize(
    ("header", "caller"),
    [
        ("", Caller(address="a")),
        (f"Basic {ALICE}", Caller(address="a", username="alice", password="a:b€".encode())),
        (f"basic {ALICE}", Caller(address="a", username="alice", password="a:b€".encode())),
        ("Bearer abc ", Caller(address="a", token="abc")),  # noqa: S106 - nobody's
        ("Bearer ", "the authorization header must be Basic or Bearer"),
        ("Digest abc", "the authorization header must be Basic or Bearer"),
        ("Basic !", "the login must be user:password in base64"),
        (f"Basic {b64encode(b'alice').decode()}", "the login must be user:password in base64"),
        (
            f"Basic {b64encode(bytes([255, 58])).decode()}",
            "the login must be user:password in base64",
        ),
    ],
)
def test_a_header_shows_a_login_or_nobody_can_say(header: str, caller: Caller | str) -> None:
    assert parse_caller(header, "a") == caller


def test_a_handshake_is_answered_by_its_token_and_other_calls_by_none() -> None:
    assert CallLogin("x", "abc").sending_headers() == {"authorization": "Bearer abc"}
    assert CallLogin("x").sending_headers() == {}
