"""Parsing and formatting of sizes, durations and times.

    size       64MiB, 1.5GB, 4096            a bare number is bytes
    duration   250ms, 90s, 1h30m, 7d         a bare number is seconds
    time       2026-01-31T12:00:00Z, 1769860800, now, -1h, now-15m

A time without a zone is UTC. A number is seconds, milliseconds or microseconds since 1970,
depending on its size.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from siltstone.errors import UsageError
from siltstone.units import SECOND_US

_SIZES: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
    "pb": 1000**5,
    "pib": 1024**5,
}
_DURATIONS_US: Final = {
    "us": 1,
    "µs": 1,
    "ms": 1000,
    "s": SECOND_US,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_SIZE: Final = re.compile(rf"({_NUMBER})\s*([a-zA-Z]*)")
_DURATION_PART: Final = re.compile(rf"({_NUMBER})\s*(us|µs|ms|s|m|h|d|w)\s*")
_EPOCH: Final = re.compile(_NUMBER)
_RELATIVE: Final = re.compile(r"(?:now)?\s*([+-])\s*(.+)")
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Seconds reach the year 5138 below the first bound, milliseconds the same year below the second.
_SECONDS_END: Final = 100_000_000_000
_MILLISECONDS_END: Final = 100_000_000_000_000
_TIME_END_US: Final = 1 << 62


def parse_size(text: str) -> int:
    """Parse a number of bytes. Raises: UsageError."""
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZES.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(
            f"expected a size such as 64MiB or 1.5GB, got {text!r} "
            "(units: B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB)"
        )
    return int(Decimal(match[1]) * unit)


def parse_duration(text: str) -> float:
    """Parse a duration and return seconds. Raises: UsageError."""
    return _duration_us(text) / SECOND_US


def _duration_us(text: str) -> int:
    stripped = text.strip()
    if _EPOCH.fullmatch(stripped):
        return int(Decimal(stripped) * SECOND_US)
    total = Decimal(0)
    position = 0
    while match := _DURATION_PART.match(stripped, position):
        total += Decimal(match[1]) * _DURATIONS_US[match[2]]
        position = match.end()
    if not stripped or position < len(stripped):
        raise UsageError(
            f"expected a time such as 250ms, 90s or 7d, got {text!r} (units: us, ms, s, m, h, d, w)"
        )
    return int(total)


def parse_time(text: str, now_us: int) -> int:
    """Parse a time and return µs since 1970; relative times count from now_us.

    Raises: UsageError.
    """
    time_us = _time_us(text.strip(), now_us)
    if not 0 <= time_us < _TIME_END_US:
        raise UsageError(f"time {text!r} is out of range; it must be after 1970")
    return time_us


def parse_span(since: str | None, until: str | None, now_us: int) -> tuple[int, int | None]:
    """Parse a start, 0 by default, and an optional end. Raises: UsageError."""
    since_us = 0 if since is None else parse_time(since, now_us)
    if until is None:
        return since_us, None
    until_us = parse_time(until, now_us)
    if until_us <= since_us:
        raise UsageError(f"--until must be later than --since: since={since} until={until}")
    return since_us, until_us


def _time_us(text: str, now_us: int) -> int:
    if text == "now":
        return now_us
    if _EPOCH.fullmatch(text):
        number = Decimal(text)
        if number < _SECONDS_END:
            return int(number * SECOND_US)
        return int(number * 1000) if number < _MILLISECONDS_END else int(number)
    if match := _RELATIVE.fullmatch(text):
        distance_us = _duration_us(match[2])
        return now_us - distance_us if match[1] == "-" else now_us + distance_us
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise UsageError(
            f"expected a time such as 2026-01-31T12:00:00Z, seconds since 1970, now or -1h, "
            f"got {text!r}"
        ) from exc
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH_START) // timedelta(microseconds=1)


def format_size(size_bytes: int) -> str:
    """Return a readable size, with the largest unit that keeps it above 1."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Return a duration that parse_duration reads: whole units, largest first."""
    left = round(seconds * SECOND_US)
    if left == 0:
        return "0s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, left = divmod(left, _DURATIONS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def format_moment(time_us: int) -> str:
    """Return a time for a table: to the second, with a space where a line may break."""
    return format_time(time_us - time_us % SECOND_US).replace(".000000", "").replace("T", " ")


def format_time(time_us: int) -> str:
    """Return a time as ISO 8601 in UTC with microseconds."""
    try:
        moment = _EPOCH_START + timedelta(microseconds=time_us)
    except OverflowError:
        # Python's datetime ends with the year 9999.
        return f"{time_us}us"
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
