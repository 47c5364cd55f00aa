from __future__ import annotations

from siltstone.mqtt.packets import Subscription
from siltstone.session.subscribed import Subscribed
from siltstone.topic.grammar import TopicFilter


def test_a_subscription_is_the_same_only_with_the_same_options_and_identifier() -> None:
    subscription = Subscription(filter=TopicFilter.parse("a/+"), qos=1)
    known = Subscribed(subscription=subscription, identifier=7)
    assert known == Subscribed(
        subscription=Subscription(filter=TopicFilter.parse("a/+"), qos=1), identifier=7
    )
    assert known != Subscribed(subscription=subscription, identifier=0)
