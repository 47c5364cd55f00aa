from __future__ import annotations

from siltstone.broker.control.storage_drift import command_for, drift
from siltstone.broker.settings.storage import Storage
from siltstone.broker.settings.topiclog import TopicLogSettings
from siltstone.cli.store.settings import parse_changes
from siltstone.store.slab.settings import DatabaseSettings


def test_what_somebody_has_set_and_the_database_has_not_is_found() -> None:
    storage = Storage(retain_seconds=2_592_000, thresholds=(5, 2), shards=1)
    assert drift(storage, DatabaseSettings()) == {
        "retain_seconds": 2_592_000.0,
        "thresholds": (5, 2),
    }
    assert drift(Storage(), DatabaseSettings(retain_seconds=60.0, quota_bytes=1 << 30)) == {}


def test_what_is_the_brokers_own_is_asked_of_no_database() -> None:
    assert drift(Storage(database="other", rules=(), keep_free_bytes=1), DatabaseSettings()) == {}


def test_the_command_does_what_the_settings_say() -> None:
    storage = Storage(
        retain_seconds=2_592_000, thresholds=(5, 2), quota_bytes=None, compression="zstd"
    )
    changes = drift(storage, DatabaseSettings(quota_bytes=1 << 30))
    command = command_for(changes, "messages", "/srv/my data")
    assert command == (
        "siltstone db set messages compression=zstd quota_bytes=none retain_seconds=2592000.0 "
        "thresholds=5,2 --data '/srv/my data'"
    )
    words = command.split(" --data")[0].split()[4:]
    assert parse_changes(words) == changes


def test_of_topic_logs_only_the_settings_of_files_are_compared() -> None:
    topiclog = TopicLogSettings(
        enabled=True, port=1, pending_bytes_max=1 << 20, retain_bytes=1 << 30, segment_bytes=65_536
    )
    kept = DatabaseSettings(shard_by="topic", shards=3, segment_bytes=65_536)
    assert drift(topiclog, kept) == {"retain_bytes": 1 << 30}
    assert drift(TopicLogSettings(), kept) == {}
