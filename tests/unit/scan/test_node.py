from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.scan.node import Node, node_from, parse_node


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("grpc://host", "grpc+tcp://host:8815"),
        ("grpc+tcp://host:1/", "grpc+tcp://host:1"),
        ("grpc+tls://host", "grpc+tls://host:8815"),
        ("grpc+tcp://[::1]:2", "grpc+tcp://[::1]:2"),
        ("grpc+unix:///data/flight.sock", "grpc+unix:///data/flight.sock"),
    ],
)
def test_an_address_is_read(url: str, address: str) -> None:
    assert parse_node(url) == Node(url=address)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host", r"url must have the form grpc\+tcp://HOST:8815"),
        ("host:1", r"url must have the form grpc\+tcp://HOST:8815"),
        ("grpc+tcp://", "url must have a host: url"),
        ("grpc+tcp://host:99999", "url must have a port from 0 to 65535"),
        (
            "grpc+tcp://host/messages",
            "url must end after its port; set the option database instead: url",
        ),
        ("grpc+tcp://user:word@host", "set username and password"),
        ("http://user:word@host", "set username and password"),
        ("user:word@host", "set username and password"),
        ("grpc+unix:a", "url must have the absolute path of a socket: url"),
    ],
)
def test_a_wrong_address_is_refused_with_a_sentence(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as told:
        parse_node(url)
    assert "word@" not in str(told.value)


def test_a_password_needs_a_user_and_an_authority_needs_tls() -> None:
    with pytest.raises(UsageError, match="password needs username"):
        parse_node("grpc://host", password="x")  # noqa: S106 - nobody's
    with pytest.raises(UsageError, match=r"rootCertificates is only for grpc\+tls"):
        parse_node("grpc://host", root_certificates="ca.pem")
    with pytest.raises(UsageError, match=r"certificate is only for grpc\+tls"):
        parse_node("grpc://host", certificate="us.pem", key="us.key")
    with pytest.raises(UsageError, match="set both certificate and key, or neither"):
        parse_node("grpc+tls://host", certificate="us.pem")


def test_options_that_name_no_node_have_no_login() -> None:
    assert node_from({"path": "/data"}) is None
    with pytest.raises(UsageError, match="username is only for a node: set url too"):
        node_from({"path": "/data", "username": "u"})


@pytest.mark.parametrize(
    ("login", "message"),
    [
        ({"token": "t", "username": "u"}, "set either token or username, not both"),
        ({"token": "secret\nx: y"}, "token must have ASCII characters only, without spaces"),
        ({"token": "secret€"}, "token must have ASCII characters only, without spaces"),
        ({"username": "a:b"}, "username must not have a colon: username"),
    ],
)
def test_a_login_that_cannot_be_one_is_refused(login: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as told:
        parse_node("grpc://host", **login)
    assert "secret" not in str(told.value)


def test_password_and_token_are_in_no_text() -> None:
    node = parse_node("grpc://host", username="u", password="secret")  # noqa: S106 - nobody's
    assert "secret" not in repr(node)
    assert "secret" not in repr(parse_node("grpc://host", token="secret"))  # noqa: S106 - nobody's
