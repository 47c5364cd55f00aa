from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from siltstone.errors import UsageError
from siltstone.store.slab.settings import FIXED, DatabaseSettings

CHANGED = DatabaseSettings(
    shards=4,
    shard_by="topic",
    thresholds=(-1, 0, 5),
    segment_bytes=64 * 1024,
    compression="zstd",
    flush_interval=0.5,
    idle_flush_interval=0.25,
    max_items=1,
    sync_interval=3600,
    pending_bytes_max=1,
    topic_cache=2,
    rotate_seconds=1.5,
    rotate_bytes=1,
    retain_seconds=0.5,
    retain_bytes=2,
    quota_bytes=3,
    reserve_bytes=0,
    backend="replicated",
)


def test_plain_values_survive_json() -> None:
    assert DatabaseSettings.from_json(json.loads(json.dumps(CHANGED.to_json()))) == CHANGED


def test_what_is_not_named_has_its_default() -> None:
    assert DatabaseSettings.from_json({}) == DatabaseSettings()


def test_limits_may_be_absent() -> None:
    settings = DatabaseSettings()
    assert [
        settings.rotate_seconds,
        settings.rotate_bytes,
        settings.retain_seconds,
        settings.retain_bytes,
        settings.quota_bytes,
    ] == [None] * 5


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("shards", 0, "a number from 1 to 16384"),
        ("shards", 16385, "a number from 1 to 16384"),
        ("shard_by", "value", "one of publisher, topic"),
        ("thresholds", (), "one or more numbers from -1 to 2147483647"),
        ("thresholds", (1, -2), "one or more numbers from -1 to 2147483647"),
        ("thresholds", (1 << 31,), "one or more numbers from -1 to 2147483647"),
        ("max_items", (1 << 40) + 1, "at most 1099511627776"),
        ("rotate_seconds", float("inf"), "at most 1099511627776"),
        ("retain_seconds", float("nan"), "a time above 0 seconds, or none"),
        ("quota_bytes", (1 << 60) + 1, "at most 1152921504606846976"),
        ("reserve_bytes", (1 << 60) + 1, "at most 1152921504606846976"),
        ("segment_bytes", 60 * 1024, "a size from 65536 to 1099511627776, a multiple of 4096"),
        ("segment_bytes", 64 * 1024 + 1, "a size from 65536 to 1099511627776, a multiple of 4096"),
        (
            "segment_bytes",
            (1 << 40) + 4096,
            "a size from 65536 to 1099511627776, a multiple of 4096",
        ),
        ("compression", "gzip", "one of none, zstd, lz4"),
        ("backend", "Local", "one of local, replicated"),
        ("max_items", 0, "a number of at least 1"),
        ("topic_cache", 1, "a number of at least 2"),
        ("pending_bytes_max", 0, "a size of at least 1"),
        ("flush_interval", -0.001, "a time from 0 to 3600 seconds"),
        ("flush_interval", float("nan"), "a time from 0 to 3600 seconds"),
        ("idle_flush_interval", 3601, "a time from 0 to 3600 seconds"),
        ("sync_interval", -1, "a time from 0 to 3600 seconds"),
        ("rotate_seconds", 0, "a time above 0 seconds, or none"),
        ("rotate_bytes", -1, "a size above 0, or none"),
        ("retain_seconds", 0, "a time above 0 seconds, or none"),
        ("retain_bytes", 0, "a size above 0, or none"),
        ("quota_bytes", 0, "a size above 0, or none"),
        ("reserve_bytes", -1, "a size of at least 0"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(name: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(DatabaseSettings(), **{name: value})
    assert str(caught.value) == f"setting {name} must be {expected}: {name}={value!r}"


@pytest.mark.parametrize(
    ("name", "value"),
    [("shards", 4096), ("segment_bytes", 1 << 40), ("flush_interval", 0), ("sync_interval", 3600)],
)
def test_the_ends_of_a_range_belong_to_it(name: str, value: Any) -> None:
    assert getattr(replace(DatabaseSettings(), **{name: value}), name) == value


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"^unknown database settings: color, size$"):
        DatabaseSettings.from_json({"size": 1, "shards": 1, "color": 2})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shards", "many"),
        ("thresholds", ["a"]),
        ("thresholds", 5),
        ("shards", 1.5),
        ("segment_bytes", 65536.0),
        ("shards", True),
        ("retain_seconds", "1d"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError):
        DatabaseSettings.from_json({name: value})


def test_what_differs_is_told_by_name() -> None:
    default = DatabaseSettings()
    assert default.changed_to(replace(default, max_items=5, shards=2)) == ["shards", "max_items"]
    assert default.changed_to(DatabaseSettings()) == []


def test_what_decides_on_the_shard_of_a_row_is_fixed() -> None:
    assert frozenset({"backend", "shards", "shard_by"}) == FIXED
