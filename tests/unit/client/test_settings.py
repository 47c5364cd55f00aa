from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.client.settings import ClientSettings, default_window
from siltstone.mqtt.packets import Connect, Disconnect, Will
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.wire import Version

V3, V5 = Version.V3_1_1, Version.V5
PLAIN = ClientSettings(client_id="c")


def test_a_plain_client_starts_clean_and_leaves_nothing() -> None:
    assert PLAIN.connect("c", returning=False) == Connect(
        version=V5,
        client_id="c",
        clean_start=True,
        keep_alive_seconds=60,
        properties=Properties(topic_alias_maximum=100),
    )
    assert PLAIN.disconnect() == Disconnect()


def test_mqtt_3_1_1_has_no_properties() -> None:
    will = Will(topic=b"w", payload=b"gone")
    settings = replace(PLAIN, version=V3, username="u", password=b"p", will=will)
    assert settings.connect("c", returning=False) == Connect(
        version=V3,
        client_id="c",
        clean_start=True,
        keep_alive_seconds=60,
        username="u",
        password=b"p",
        will=will,
        properties=NO_PROPERTIES,
    )


@pytest.mark.parametrize(
    ("settings", "returning", "clean_start", "expiry", "expiry_left"),
    [
        # A session is borrowed while we may come back, and given up when we leave.
        (replace(PLAIN, reconnect=True), False, True, 3600, 0),
        (replace(PLAIN, reconnect=True), True, False, 3600, 0),
        # One that is kept is left as it is.
        (replace(PLAIN, keep_session=True), False, False, 0xFFFF_FFFF, None),
        (replace(PLAIN, keep_session=True, session_expiry_seconds=60), False, False, 60, None),
        (replace(PLAIN, keep_session=True, session_expiry_seconds=0), False, False, None, None),
        (replace(PLAIN, keep_session=True, reconnect=True), True, False, 0xFFFF_FFFF, None),
        # 3.1.1 cannot give one up, so none is borrowed.
        (replace(PLAIN, version=V3, reconnect=True), True, True, None, None),
        (replace(PLAIN, version=V3, keep_session=True), False, False, None, None),
    ],
)
def test_how_long_a_session_lasts(
    settings: ClientSettings,
    returning: bool,
    clean_start: bool,
    expiry: int | None,
    expiry_left: int | None,
) -> None:
    connect = settings.connect("c", returning=returning)
    assert (connect.clean_start, connect.properties.session_expiry_interval) == (
        clean_start,
        expiry,
    )
    assert settings.disconnect().properties.session_expiry_interval == expiry_left


@pytest.mark.parametrize(
    ("version", "qos", "window"),
    [(V5, 1, 1000), (V5, 2, 1000), (V3, 1, 1000), (V3, 2, 20)],
)
def test_the_window_is_small_where_a_server_cannot_tell_what_it_takes(
    version: Version, qos: int, window: int
) -> None:
    assert default_window(version, qos) == window


def test_a_server_is_told_how_much_it_may_send_ahead() -> None:
    told = replace(PLAIN, receive_max=7).connect("c", returning=False).properties
    assert told == Properties(topic_alias_maximum=100, receive_maximum=7)
