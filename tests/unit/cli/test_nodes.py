from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.cli.nodes import NodeLogin, own_directory
from siltstone.errors import UsageError

URL = "grpc+tls://h"


def test_what_is_given_names_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"password": "rock\r\nsand\n", "token": "t0k3n"}
    monkeypatch.setattr(Path, "read_text", lambda path, _: texts[path.name])
    assert NodeLogin().options("") == {}
    assert NodeLogin(username="u", password_file=Path("password")).options(URL) == {
        "url": URL,
        "username": "u",
        "password": "rock",
    }
    trusted = NodeLogin(token_file=Path("token"), root_certificates=Path("ca.pem"))
    assert trusted.options(URL) == {"url": URL, "token": "t0k3n", "rootCertificates": "ca.pem"}


def test_a_password_without_a_user_is_meant_for_something_else() -> None:
    assert NodeLogin(password="rock").options(URL) == {"url": URL}  # noqa: S106 - nobody's


@pytest.mark.parametrize(
    ("login", "url", "sentence"),
    [
        (NodeLogin(username="u"), "", "username is only for a node: set url too"),
        (NodeLogin(), "http://h", "url must have the form grpc"),
        (NodeLogin(token_file=Path("/nowhere/token")), URL, "cannot read /nowhere/token"),
    ],
)
def test_what_names_no_node_is_refused(login: NodeLogin, url: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        login.options(url)


def test_who_works_on_files_is_given_no_url() -> None:
    assert own_directory(Path("grpc/data")) == "grpc/data"
    with pytest.raises(UsageError, match="run it on the machine of the broker"):
        own_directory(Path("grpc+tcp://h:1"))
