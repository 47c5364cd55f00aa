from __future__ import annotations

import pytest

from siltstone.bridge.mapping import MappedTopic, inward, outward, subscriptions
from siltstone.bridge.settings import LinkTopic
from siltstone.errors import InvalidTopicError
from siltstone.mqtt.packets import Subscription
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter

TOPICS = (
    LinkTopic(pattern="temp/#", qos=2, local_prefix="plant/", remote_prefix="site/7/"),
    LinkTopic(pattern="#", direction="both", local_prefix="plant/"),
    LinkTopic(pattern="cmd/+", direction="in", remote_prefix="orders/"),
)


@pytest.mark.parametrize(
    ("topic", "route"),
    [
        (b"plant/temp/1", MappedTopic(b"site/7/temp/1", 2)),
        (b"plant/temp", MappedTopic(b"site/7/temp", 2)),
        (b"plant/other", MappedTopic(b"other", 1)),
        (b"temp/1", None),
        (b"cmd/x", None),
        (b"plant", None),
        (b"plant/", None),
    ],
)
def test_out_the_first_topic_that_matches_gives_the_name_there(
    topic: bytes, route: MappedTopic | None
) -> None:
    routes = outward(TOPICS)
    assert (routes.find(topic), routes.find(topic)) == (route, route)


@pytest.mark.parametrize(
    ("topic", "route"),
    [
        (b"site/7/temp/1", MappedTopic(b"plant/site/7/temp/1", 1)),
        (b"orders/cmd/x", MappedTopic(b"plant/orders/cmd/x", 1)),
        (b"$SYS/x", None),
    ],
)
def test_in_the_prefixes_change_places(topic: bytes, route: MappedTopic | None) -> None:
    assert inward(TOPICS).find(topic) == route


def test_in_a_remote_prefix_is_taken_off() -> None:
    assert inward(TOPICS[2:]).find(b"orders/cmd/x") == MappedTopic(b"cmd/x", 1)


def test_a_name_too_long_for_mqtt_goes_nowhere() -> None:
    routes = outward((LinkTopic(pattern="#", remote_prefix="x/"),))
    assert routes.find(b"y" * 65_533) == MappedTopic(b"x/" + b"y" * 65_533, 1)
    assert routes.find(b"y" * 65_534) is None


def test_what_is_remembered_has_an_end() -> None:
    routes = outward((LinkTopic(pattern="#"),))
    for number in range(10_001):
        routes.find(b"%d" % number)
    assert routes.find(b"7") == MappedTopic(b"7", 1)


def test_a_filter_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidTopicError):
        outward((LinkTopic(pattern="a/#/b"),))


def test_of_mqtt_5_our_own_messages_are_not_asked_for() -> None:
    both = TopicFilter.parse("#")
    orders = TopicFilter.parse("orders/cmd/+")
    routes = inward(TOPICS)
    assert subscriptions(routes, Version.V3_1_1) == (
        Subscription(filter=both, qos=1),
        Subscription(filter=orders, qos=1),
    )
    assert subscriptions(routes, Version.V5) == tuple(
        Subscription(
            filter=wanted, qos=1, no_local=True, retain_as_published=True, retain_handling=1
        )
        for wanted in (both, orders)
    )
