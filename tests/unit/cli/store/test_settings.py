from __future__ import annotations

from dataclasses import fields

import pytest

from siltstone.cli.store.settings import SETTINGS, parse_changes, shown_default, shown_settings
from siltstone.errors import UsageError
from siltstone.store.slab.settings import DatabaseSettings


def test_every_setting_of_a_database_has_a_name_on_the_command_line() -> None:
    assert list(SETTINGS) == [field.name for field in fields(DatabaseSettings)]


def test_settings_are_shown_by_option_and_with_units() -> None:
    settings = DatabaseSettings(
        shards=2, thresholds=(5, 0, -1), segment_bytes=64 * 1024**2, rotate_seconds=5_400.0
    )
    assert shown_settings(settings) == [
        ("shards", "2"),
        ("shard-by", "publisher"),
        ("threshold", "5,0,-1"),
        ("segment-bytes", "64 MiB"),
        ("compression", "none"),
        ("flush-interval", "10ms"),
        ("idle-flush-interval", "0s"),
        ("max-items", "20000"),
        ("sync-interval", "1s"),
        ("pending-bytes", "64 MiB"),
        ("topic-cache", "8192"),
        ("rotate", "1h30m"),
        ("rotate-bytes", "none"),
        ("retain", "none"),
        ("retain-bytes", "none"),
        ("reclaim", "none"),
        ("quota", "none"),
        ("reserve", "1 MiB"),
        ("backend", "local"),
    ]


def test_defaults_are_shown_with_units() -> None:
    shown = [shown_default(name) for name in ("segment_bytes", "thresholds", "quota_bytes")]
    assert shown == ["1 GiB", "100,10", "none"]


def test_changes_are_named_by_option_or_by_field() -> None:
    assert parse_changes(
        ["retain=7d", "--rotate-bytes=1GiB", "quota_bytes=none", "threshold=3,2", "max-items=5"]
    ) == {
        "retain_seconds": 604_800.0,
        "rotate_bytes": 1024**3,
        "quota_bytes": None,
        "thresholds": (3, 2),
        "max_items": 5,
    }


def test_none_is_a_compression() -> None:
    assert parse_changes(["compression=none"]) == {"compression": "none"}
    assert parse_changes(["reclaim=none"]) == {"reclaim": "none"}
    assert parse_changes(["compression=zstd"]) == {"compression": "zstd"}


def test_a_change_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE, as in retain=30d, got 'retain'"):
        parse_changes(["retain"])


@pytest.mark.parametrize("text", ["colour=red", "=7d"])
def test_what_is_no_setting_is_refused_with_the_names_there_are(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_changes([text])
    assert str(caught.value) == (
        f"unknown setting {text.partition('=')[0]!r} (known: shards, shard-by, threshold, "
        "segment-bytes, compression, flush-interval, idle-flush-interval, max-items, "
        "sync-interval, pending-bytes, topic-cache, rotate, rotate-bytes, retain, retain-bytes, "
        "reclaim, quota, reserve, backend)"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max-items=many", "max-items: expected a whole number, got 'many'"),
        (
            "threshold=1,,2",
            "threshold: expected numbers with commas between them, as 100,10, got '1,,2'",
        ),
        (
            "flush-interval=none",
            (
                "flush-interval: expected a time, as 250ms, 90s or 7d, got 'none' "
                "(units: us, ms, s, m, h, d, w)"
            ),
        ),
        (
            "retain=1y",
            "retain: expected a time, as 250ms, 90s or 7d, got '1y' (units: us, ms, s, m, h, d, w)",
        ),
    ],
)
def test_a_bad_value_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_changes([text])
    assert str(caught.value) == complaint
