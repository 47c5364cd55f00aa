from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.settings.quantities import (
    format_duration,
    format_moment,
    format_size,
    format_time,
    parse_duration,
    parse_size,
    parse_time,
)

NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("64KiB", 65_536),
        ("64 kib", 65_536),
        ("1.5MiB", 1_572_864),
        ("10GiB", 10 * 1024**3),
        ("2TiB", 2 * 1024**4),
        ("10kB", 10_000),
        ("1.5MB", 1_500_000),
        ("1GB", 10**9),
        ("3TB", 3 * 10**12),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "1XB", "-1", "1e3", "1.MiB", "64M", "1MiB2", "nan"])
def test_what_is_no_size_is_refused_with_the_units_there_are(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert str(caught.value) == (
        f"expected a size such as 64MiB or 1.5GB, got {text!r} "
        "(units: B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB)"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("10", 10.0),
        ("0.5", 0.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("10ms", 0.01),
        ("90s", 90.0),
        ("1.5m", 90.0),
        ("1h30m", 5_400.0),
        ("1h 30m", 5_400.0),
        ("7d", 604_800.0),
        ("1w", 604_800.0),
    ],
)
def test_a_duration_is_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1y", "-1h", "1h30", "1h x", "1 000s"])
def test_what_is_no_duration_is_refused_with_the_units_there_are(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert str(caught.value) == (
        f"expected a time such as 250ms, 90s or 7d, got {text!r} (units: us, ms, s, m, h, d, w)"
    )


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("now", NOW_US),
        ("-1h", NOW_US - HOUR_US),
        ("+1h", NOW_US + HOUR_US),
        ("now-1h", NOW_US - HOUR_US),
        ("now + 1h", NOW_US + HOUR_US),
        ("-1h30m", NOW_US - HOUR_US * 3 // 2),
        ("-60", NOW_US - 60_000_000),
        ("0", 0),
        ("1700000000", NOW_US),
        ("1700000000.000001", NOW_US + 1),
        ("1700000000000", NOW_US),
        ("1700000000000.001", NOW_US + 1),
        ("1700000000000001", NOW_US + 1),
        ("2023-11-14T22:13:20Z", NOW_US),
        ("2023-11-14T22:13:20", NOW_US),
        ("2023-11-14 23:13:20.000001+01:00", NOW_US + 1),
        ("2023-11-14", 1_699_920_000_000_000),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_a_time_is_iso_8601_or_a_number_or_relative_to_now(text: str, time_us: int) -> None:
    assert parse_time(text, NOW_US) == time_us


@pytest.mark.parametrize("text", ["", "yesterday", "2023-13-01", "12:00", "nan"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_time(text, NOW_US)
    assert str(caught.value) == (
        "expected a time such as 2026-01-31T12:00:00Z, seconds since 1970, now or -1h, "
        f"got {text!r}"
    )


def test_a_relative_time_with_a_bad_duration_says_so() -> None:
    with pytest.raises(UsageError, match="got '1y'"):
        parse_time("-1y", NOW_US)


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59Z", "-3000w", "99999999999999999999999"])
def test_a_time_before_1970_or_beyond_all_clocks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is out of range; it must be after 1970"):
        parse_time(text, NOW_US)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 * 1024**2, "64 MiB"),
        (10 * 1024**3, "10 GiB"),
        (5 * 1024**5, "5120.0 TiB"),
    ],
)
def test_a_size_is_shown_in_the_largest_unit_that_fits(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.00025, "250us"),
        (0.01, "10ms"),
        (1.0, "1s"),
        (5_400.0, "1h30m"),
        (604_800.0, "7d"),
        (90_061.5, "1d1h1m1s500ms"),
    ],
)
def test_a_duration_is_shown_as_it_can_be_read_again(seconds: float, text: str) -> None:
    assert (format_duration(seconds), parse_duration(text)) == (text, seconds)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (NOW_US + 1, "2023-11-14T22:13:20.000001Z"),
        (1 << 62, "4611686018427387904us"),
    ],
)
def test_a_time_is_shown_as_iso_8601_where_there_is_a_calendar(time_us: int, text: str) -> None:
    assert format_time(time_us) == text


def test_a_moment_is_shown_to_the_second() -> None:
    assert format_moment(NOW_US + 999_999) == "2023-11-14 22:13:20Z"
