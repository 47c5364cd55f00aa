from __future__ import annotations

import pytest
from pydantic import ValidationError

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.broker.settings.topiclog import TopicLogPublish, TopicLogSettings
from siltstone.store.slab.settings import DatabaseSettings


def test_topic_logs_are_off_and_on_loopback_unless_said_otherwise() -> None:
    settings = TopicLogSettings()
    assert (settings.enabled, settings.host, settings.port) == (False, "127.0.0.1", 9410)
    assert settings.database_settings() == DatabaseSettings(shard_by="topic")


def test_files_are_as_the_settings_say() -> None:
    settings = TopicLogSettings(segment_bytes=1 << 20, retain_bytes=5, quota_bytes=9)
    assert settings.database_settings() == DatabaseSettings(
        shard_by="topic", segment_bytes=1 << 20, retain_bytes=5, quota_bytes=9
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])  # noqa: S104 - not bound
def test_other_machines_reach_it_only_where_that_is_said(host: str) -> None:
    with pytest.raises(ValidationError, match="is not a loopback address"):
        TopicLogSettings(enabled=True, host=host)
    assert TopicLogSettings(enabled=True, host=host, allow_anonymous=True).host == host
    assert TopicLogSettings(host=host).host == host


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost"])
def test_loopback_is_loopback(host: str) -> None:
    assert TopicLogSettings(enabled=True, host=host).host == host


@pytest.mark.parametrize("prefix", ["a/+/", "#", "\0"])
def test_a_prefix_is_no_filter(prefix: str) -> None:
    with pytest.raises(ValidationError, match="must not have the wildcards"):
        TopicLogPublish(filter="#", prefix=prefix)


def test_topic_logs_need_the_store() -> None:
    with pytest.raises(ValidationError, match="needs persistence"):
        BrokerSettings(persistence="snapshot", topiclog=TopicLogSettings(enabled=True))
