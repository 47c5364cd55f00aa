from __future__ import annotations

from typing import Any

import pytest

from siltstone.broker.connect.negotiate import Negotiated, agree
from siltstone.broker.settings.broker import Limits
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import ConnAck, Connect, Will
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.session.session import NO_EXPIRY

V3, V5 = Version.V3_1_1, Version.V5
WEEK = 604_800


def connect(
    version: Version = V5,
    client_id: str = "c",
    *,
    clean_start: bool = True,
    keep_alive_seconds: int = 0,
    will: Will | None = None,
    **properties: Any,
) -> Connect:
    return Connect(
        version=version,
        client_id=client_id,
        clean_start=clean_start,
        keep_alive_seconds=keep_alive_seconds,
        will=will,
        properties=Properties(**properties),
    )


def terms(asked: Connect, **limits: Any) -> Negotiated:
    agreed = agree(asked, Limits(**limits), "assigned")
    assert isinstance(agreed, Negotiated)
    return agreed


def refusal(asked: Connect, **limits: Any) -> Reason:
    agreed = agree(asked, Limits(**limits), "assigned")
    assert isinstance(agreed, Reason)
    return agreed


def test_who_asks_for_nothing_is_told_the_limits_and_nothing_more() -> None:
    assert terms(connect()) == Negotiated(
        client_id="c",
        keep_alive_seconds=0,
        expiry_seconds=0,
        window=1024,
        packet_size_max=0,
        alias_out_max=0,
        properties=Properties(
            receive_maximum=1024, maximum_packet_size=16 * 1024 * 1024, topic_alias_maximum=10
        ),
    )


def test_what_the_client_asks_for_within_the_limits_holds_and_is_not_told_back() -> None:
    asked = connect(
        keep_alive_seconds=60,
        session_expiry_interval=3600,
        receive_maximum=5,
        maximum_packet_size=1000,
        topic_alias_maximum=7,
    )
    assert terms(asked) == Negotiated(
        client_id="c",
        keep_alive_seconds=60,
        expiry_seconds=3600,
        window=5,
        packet_size_max=1000,
        alias_out_max=7,
        properties=Properties(
            receive_maximum=1024, maximum_packet_size=16 * 1024 * 1024, topic_alias_maximum=10
        ),
    )


def test_what_is_beyond_the_limits_is_cut_and_told() -> None:
    asked = connect(
        keep_alive_seconds=601,
        session_expiry_interval=101,
        receive_maximum=30,
        topic_alias_maximum=40,
    )
    agreed = terms(
        asked,
        keep_alive_max=600,
        session_expiry_max=100,
        inflight_max=20,
        topic_alias_out_max=8,
        receive_max=3,
        packet_size_max=2048,
        topic_alias_max=0,
    )
    assert agreed == Negotiated(
        client_id="c",
        keep_alive_seconds=600,
        expiry_seconds=100,
        window=20,
        packet_size_max=0,
        alias_out_max=8,
        properties=Properties(
            session_expiry_interval=100,
            server_keep_alive=600,
            receive_maximum=3,
            maximum_packet_size=2048,
            topic_alias_maximum=0,
        ),
    )


@pytest.mark.parametrize(
    ("asked", "limit", "held", "told"),
    [
        (0, 65_535, 0, None),
        (65_535, 65_535, 65_535, None),
        (0, 65_534, 65_534, 65_534),
        (1, 65_534, 1, None),
        (65_534, 65_534, 65_534, None),
        (65_535, 65_534, 65_534, 65_534),
    ],
)
def test_mqtt_3_1_2_21_a_keep_alive_that_is_too_long_or_none_is_replaced_and_told(
    asked: int, limit: int, held: int, told: int | None
) -> None:
    agreed = terms(connect(keep_alive_seconds=asked), keep_alive_max=limit)
    assert (agreed.keep_alive_seconds, agreed.properties.server_keep_alive) == (held, told)


@pytest.mark.parametrize(
    ("asked", "limit", "held", "told"),
    [
        (connect(), WEEK, 0, None),
        # Clean start says how a session begins, not how it ends.
        (connect(clean_start=False), WEEK, 0, None),
        (connect(session_expiry_interval=10), WEEK, 10, None),
        (connect(session_expiry_interval=NO_EXPIRY), WEEK, WEEK, WEEK),
        (connect(session_expiry_interval=NO_EXPIRY), NO_EXPIRY, NO_EXPIRY, None),
        (connect(session_expiry_interval=10), 0, 0, 0),
        (connect(V3), WEEK, 0, None),
        (connect(V3, clean_start=False), WEEK, WEEK, WEEK),
        (connect(V3, clean_start=False), NO_EXPIRY, NO_EXPIRY, None),
    ],
)
def test_a_session_lives_as_long_as_asked_and_no_longer_than_allowed(
    asked: Connect, limit: int, held: int, told: int | None
) -> None:
    agreed = terms(asked, session_expiry_max=limit)
    assert (agreed.expiry_seconds, agreed.properties.session_expiry_interval) == (held, told)


def test_mqtt_3_1_3_6_who_brings_no_client_id_is_given_one_and_told() -> None:
    agreed = terms(connect(client_id=""))
    assert (agreed.client_id, agreed.properties.assigned_client_identifier) == (
        "assigned",
        "assigned",
    )


def test_an_assigned_client_id_may_be_longer_than_clients_may_choose() -> None:
    agreed = agree(connect(client_id=""), Limits(client_id_size_max=23), "a" * 29)
    assert isinstance(agreed, Negotiated)
    assert agreed.client_id == "a" * 29


def test_mqtt_3_1_3_8_a_client_id_that_is_too_long_in_bytes_is_refused() -> None:
    assert terms(connect(client_id="ä" * 15), client_id_size_max=30).client_id == "ä" * 15
    assert (
        refusal(connect(client_id="ä" * 15 + "x"), client_id_size_max=30)
        is Reason.CLIENT_IDENTIFIER_NOT_VALID
    )


def test_mqtt_4_12_0_1_an_authentication_method_is_refused_for_there_are_none() -> None:
    asked = connect(authentication_method="SCRAM-SHA-1")
    assert refusal(asked) is Reason.BAD_AUTHENTICATION_METHOD


def test_a_will_below_the_broker_s_own_topics_is_refused() -> None:
    asked = connect(will=Will(topic=b"$SYS/broker/version", payload=b"mine"))
    assert refusal(asked) is Reason.TOPIC_NAME_INVALID
    assert terms(connect(will=Will(topic=b"a/$SYS", payload=b""))).client_id == "c"


def test_mqtt_3_1_2_24_who_cannot_take_the_answer_is_refused() -> None:
    answer = encode(V5, ConnAck(properties=terms(connect(client_id="")).properties))
    fits, too_small = (
        connect(client_id="", maximum_packet_size=len(answer) - less) for less in (0, 1)
    )
    assert terms(fits).packet_size_max == len(answer)
    assert refusal(too_small) is Reason.PACKET_TOO_LARGE
