from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from siltstone.broker.settings.bridges import BridgeSettings, BridgeTopic
from siltstone.broker.settings.broker import BrokerSettings

PLAIN: dict[str, Any] = {
    "name": "cloud",
    "server": "mqtt://peer.example",
    "topics": [{"filter": "a/#"}],
}


def complaint(values: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        BridgeSettings.model_validate(PLAIN | values)
    [error] = caught.value.errors(include_url=False)
    return error["msg"]


def test_a_bridge_needs_a_name_a_server_and_topics() -> None:
    bridge = BridgeSettings.model_validate(PLAIN)
    assert (bridge.version, bridge.when_full, bridge.secure) == ("5", "refuse", False)
    assert bridge.topics == (BridgeTopic(filter="a/#", direction="out", qos=1),)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"topics": []}, "is empty: a bridge needs at least one topic"),
        ({"server": "http://x"}, "write mqtt://HOST[:PORT] or mqtts://HOST[:PORT]"),
        ({"server": "mqtt://user@x"}, "must be a URL without topic and user"),
        ({"server": "mqtt://x/a/b"}, "must be a URL without topic and user"),
        ({"authorities": "ca.pem"}, "is only for mqtts, and the URL has mqtt"),
        ({"server": "mqtts://x", "key": "k.pem"}, "a key needs its certificate"),
        ({"password_file": "y"}, "a password needs a user name"),
        ({"topics": [{"filter": "#", "local_prefix": "a/+/"}]}, "must not have the wildcards"),
        (
            {"topics": [{"filter": "#", "remote_prefix": "a"}]},
            "are not a valid topic filter together",
        ),
        (
            {"topics": [{"filter": "g/#", "local_prefix": "$share/"}]},
            "must not make a shared filter",
        ),
        ({"name": "a/b"}, "invalid name"),
    ],
)
def test_what_makes_no_bridge_is_told(values: dict[str, Any], sentence: str) -> None:
    assert sentence in complaint(values)


def test_two_bridges_have_two_names() -> None:
    with pytest.raises(ValidationError, match="is the name of another bridge: 'cloud'"):
        BrokerSettings.model_validate({"bridge": [PLAIN, PLAIN]})
