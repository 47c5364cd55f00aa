from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from siltstone.broker.settings.storage import SessionSettings, ShareSettings, Storage, StoreRule
from siltstone.store.slab.settings import DatabaseSettings

MIB = 1024 * 1024


def test_without_a_word_everything_is_stored_and_synced_and_sessions_are_durable() -> None:
    assert (StoreRule(filter="#").store, StoreRule(filter="#").durability) == ("always", "synced")
    assert Storage().rules == ()
    assert SessionSettings().durable
    assert ShareSettings().strategy == "least-loaded"


def test_a_database_that_the_broker_creates_has_the_settings_of_the_store() -> None:
    defaults = DatabaseSettings()
    made = Storage(shards=3, segment_bytes=1 << 20).database_settings()
    assert (made.shards, made.segment_bytes, made.thresholds) == (3, 1 << 20, defaults.thresholds)


def test_a_backlog_has_no_limits_unless_it_is_given_some() -> None:
    sessions = SessionSettings()
    limits = (
        sessions.backlog_messages_max,
        sessions.backlog_bytes_max,
        sessions.backlog_age_max,
        sessions.backlog_policy,
    )
    assert limits == (0, 0, 0.0, "drop-old")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (StoreRule, {"filter": "a/#/b"}),
        (StoreRule, {"filter": "a", "store": "sometimes"}),
        (StoreRule, {"filter": "a", "durability": "perhaps"}),
        (Storage, {"shards": 0}),
        (Storage, {"database": "_own"}),
        (ShareSettings, {"strategy": "fair"}),
        (ShareSettings, {"loan_timeout": 0}),
        (ShareSettings, {"expiry": -1}),
        (SessionSettings, {"backlog_policy": "drop-all"}),
        (SessionSettings, {"backlog_messages_max": -1}),
        (SessionSettings, {"unknown": 1}),
    ],
)
def test_what_makes_no_sense_is_refused(kind: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind(**fields)


@pytest.mark.parametrize(
    ("said", "disk_bytes", "kept"),
    [
        ({}, 1 << 40, 64 * MIB),
        ({}, 512 * MIB, 64 * MIB),
        ({}, 64 * MIB, 8 * MIB),
        ({"keep_free_bytes": "64 MiB"}, 64 * MIB, 64 * MIB),
        ({"keep_free_bytes": 0}, 1 << 40, 0),
    ],
)
def test_a_small_disk_keeps_an_eighth_of_it_free_unless_another_size_is_set(
    said: dict[str, object], disk_bytes: int, kept: int
) -> None:
    assert Storage.model_validate(said).keep_free(disk_bytes) == kept
