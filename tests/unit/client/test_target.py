from __future__ import annotations

import pytest

from siltstone.client.target import ServerUrl, TcpTarget, UnixTarget, parse_url
from siltstone.errors import UsageError


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (TcpTarget("localhost", 1883), "localhost:1883"),
        (TcpTarget("::1", 1883), "[::1]:1883"),
        (UnixTarget("/run/silt.sock"), "/run/silt.sock"),
    ],
)
def test_a_target_reads_as_people_write_it(target: TcpTarget | UnixTarget, text: str) -> None:
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mqtt://host", ServerUrl(host="host", port=1883, tls=False)),
        ("mqtts://host/", ServerUrl(host="host", port=8883, tls=True)),
        (
            "mqtt://us%40er:p%3Aw@[::1]:1884/a/b%20c",
            ServerUrl(
                host="::1",
                port=1884,
                tls=False,
                username="us@er",
                password="p:w",  # noqa: S106 - nobody's
                topic="a/b c",
            ),
        ),
        (
            "mqtt://user@host/a/#",
            ServerUrl(host="host", port=1883, tls=False, username="user", topic="a/#"),
        ),
    ],
)
def test_a_url_names_server_user_and_topic(text: str, expected: ServerUrl) -> None:
    assert parse_url(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("http://host", "write mqtt://HOST"),
        ("host:1883", "invalid URL"),
        ("mqtt:///topic", "invalid URL"),
        ("mqtt://host:0x1", "invalid URL"),
        ("mqtt://host/a?b", "write %3F"),
    ],
)
def test_another_url_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_url(text)
