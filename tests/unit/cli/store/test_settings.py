from __future__ import annotations

from typing import Any

import pytest
import typer

from siltstone.cli.store.settings import parse_changes, shown_settings, takes_settings
from siltstone.errors import UsageError
from siltstone.settings.declare import declared
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings


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
        ("compaction", "background"),
        ("quota", "none"),
        ("reserve", "1 MiB"),
        ("backend", "local"),
        ("replicas", "3"),
    ]


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
        "reclaim, compaction, quota, reserve, backend, "
        "replicas)"
    )


def test_a_misspelled_setting_is_told_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown setting 'retian', did you mean retain"):
        parse_changes(["retian=7d"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max-items=many", "max-items: expected a whole number, got 'many'"),
        (
            "threshold=1,,2",
            "threshold: expected numbers with commas between them, such as 100,10, got '1,,2'",
        ),
        (
            "flush-interval=none",
            (
                "flush-interval: expected a time such as 250ms, 90s or 7d, got 'none' "
                "(units: us, ms, s, m, h, d, w)"
            ),
        ),
        (
            "retain=1y",
            (
                "retain: expected a time such as 250ms, 90s or 7d, got '1y' "
                "(units: us, ms, s, m, h, d, w)"
            ),
        ),
    ],
)
def test_a_bad_value_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_changes([text])
    assert str(caught.value) == complaint


def test_a_complaint_names_the_setting_as_it_was_typed() -> None:
    complaints = []
    for text in ("retain=1y", "retain_seconds=1y", "--retain-seconds=0"):
        with pytest.raises(UsageError) as caught:
            parse_changes([text])
        complaints.append(str(caught.value).partition(" such")[0].partition(",")[0])
    assert complaints == [
        "retain: expected a time",
        "retain_seconds: expected a time",
        "--retain-seconds must be a time above 0 seconds",
    ]


@pytest.mark.parametrize("kind", [DatabaseSettings, KeyValueSettings])
def test_each_declared_setting_has_an_option_with_its_help_and_default(kind: type[Any]) -> None:
    app = typer.Typer()
    received: list[dict[str, Any]] = []

    def command(name: str, settings: dict[str, Any], json: bool = False) -> None:
        received.append(settings)

    app.command()(takes_settings(command, kind, without=("timed",)))
    made = typer.main.get_command(app)
    known = [each for each in declared(kind).values() if each.field != "timed"]
    options = {option.opts[0]: option for option in made.params[1 : 1 + len(known)]}
    assert list(options) == [f"--{each.option}" for each in known]
    for each in known:
        option: Any = options[f"--{each.option}"]
        shown = (option.help, option.metavar, option.show_default)
        assert shown == (each.setting.help, each.metavar, each.show(each.default))
    given = [text for each in known for text in (f"--{each.option}", each.show(each.default))]
    made.main(["NAME", *given], standalone_mode=False)
    assert received == [{each.field: each.default for each in known if each.default is not None}]
