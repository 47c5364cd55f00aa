from __future__ import annotations

from typing import Any

import pytest

from siltstone.errors import UsageError
from siltstone.store.tx.settings import KeyValueSettings


def test_settings_are_the_same_after_json() -> None:
    settings = KeyValueSettings(shards=3, timed=False, thresholds=(0, -1), quota_bytes=5)
    assert KeyValueSettings.from_json(settings.to_json()) == settings
    assert settings.to_json()["thresholds"] == [0, -1]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("shards", 0, "a number from 1 to 4096"),
        ("shards", True, "a number from 1 to 4096"),
        ("timed", 1, "true or false"),
        ("thresholds", [], "one or more numbers of at least -1"),
        ("thresholds", [-2], "one or more numbers of at least -1"),
        ("thresholds", [True], "one or more numbers of at least -1"),
        ("max_items", 0, "a number from 1 to 1048576"),
        ("pending_bytes_max", 0, "a size from 1 to 1099511627776"),
        ("topic_cache", 1, "a number from 2 to 1099511627776"),
        ("conflict_writes_max", 1, "a number from 2 to 1099511627776"),
        ("flush_interval", -0.1, "a time from 0 to 31622400 seconds"),
        ("idle_flush_interval", "1", "a time from 0 to 31622400 seconds"),
        ("conflict_window", True, "a time from 0 to 31622400 seconds"),
        ("remember_ids", 1e9, "a time from 0 to 31622400 seconds"),
        ("quota_bytes", 0, "a size from 1 to 1152921504606846976, or none"),
        ("rotate_bytes", 0, "a size from 1 to 1152921504606846976, or none"),
        ("retain_seconds", -1, "a time from 0 to 31622400 seconds, or none"),
    ],
)
def test_what_cannot_work_is_refused(name: str, value: object, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        KeyValueSettings.from_json({name: value})
    shown = tuple(value) if isinstance(value, list) else value
    assert str(caught.value) == f"setting {name} must be {expected}: {name}={shown!r}"


def test_generations_have_limits_in_a_timed_database_only() -> None:
    limited = KeyValueSettings(rotate_seconds=1.5)
    assert (limited.has_limits, KeyValueSettings().has_limits) == (True, False)
    with pytest.raises(UsageError, match="must be left out of a plain map: retain_bytes=5"):
        KeyValueSettings(timed=False, retain_bytes=5)


def test_unknown_settings_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        KeyValueSettings.from_json({"sharks": 1, "colour": 2})
    assert str(caught.value) == "unknown database settings: colour, sharks"


def test_settings_change_but_for_those_that_make_the_keys() -> None:
    settings = KeyValueSettings()
    assert settings.changed({"max_items": 5}) == KeyValueSettings(max_items=5)
    changes: dict[str, Any] = {"timed": False, "shards": 2, "max_items": 5}
    with pytest.raises(UsageError) as caught:
        settings.changed(changes)
    assert str(caught.value) == (
        "these settings cannot change after a database was created: shards, timed"
    )
