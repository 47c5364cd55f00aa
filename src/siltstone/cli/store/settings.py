"""The settings of a database on the command line: names, parsing and formatting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from siltstone.cli.output.quantities import format_duration, format_size, parse_duration, parse_size
from siltstone.errors import UsageError
from siltstone.store.slab.settings import DatabaseSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field: the name of the option without dashes, and its parser and formatter."""

    option: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]


def parse_count(text: str) -> int:
    """Parse a whole number. Raises: UsageError."""
    try:
        return int(text)
    except ValueError as exc:
        raise UsageError(f"expected a whole number, got {text!r}") from exc


def parse_thresholds(text: str) -> tuple[int, ...]:
    """Parse numbers separated by commas. Raises: UsageError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as exc:
        raise UsageError(
            f"expected numbers with commas between them, as 100,10, got {text!r}"
        ) from exc


def show_thresholds(thresholds: Iterable[int]) -> str:
    """Return the text that parse_thresholds reads."""
    return ",".join(map(str, thresholds))


def _text(option: str) -> Setting:
    return Setting(option=option, parse=str, show=str)


def _count(option: str) -> Setting:
    return Setting(option=option, parse=parse_count, show=str)


def _size(option: str) -> Setting:
    return Setting(option=option, parse=parse_size, show=format_size)


def _duration(option: str) -> Setting:
    return Setting(option=option, parse=parse_duration, show=format_duration)


SETTINGS: Final[Mapping[str, Setting]] = {
    "shards": _count("shards"),
    "shard_by": _text("shard-by"),
    "thresholds": Setting(option="threshold", parse=parse_thresholds, show=show_thresholds),
    "segment_bytes": _size("segment-bytes"),
    "compression": _text("compression"),
    "flush_interval": _duration("flush-interval"),
    "idle_flush_interval": _duration("idle-flush-interval"),
    "max_items": _count("max-items"),
    "sync_interval": _duration("sync-interval"),
    "pending_bytes_max": _size("pending-bytes"),
    "topic_cache": _count("topic-cache"),
    "rotate_seconds": _duration("rotate"),
    "rotate_bytes": _size("rotate-bytes"),
    "retain_seconds": _duration("retain"),
    "retain_bytes": _size("retain-bytes"),
    "reclaim": _text("reclaim"),
    "quota_bytes": _size("quota"),
    "reserve_bytes": _size("reserve"),
    "backend": _text("backend"),
}


def shown_settings(settings: DatabaseSettings) -> list[tuple[str, str]]:
    """Return the option name and the readable value of each setting."""
    return [
        (setting.option, _shown(setting, getattr(settings, field)))
        for field, setting in SETTINGS.items()
    ]


def _shown(setting: Setting, value: Any) -> str:
    return "none" if value is None else setting.show(value)


def shown_value(field: str, value: Any) -> str:
    """Return the readable value of a field."""
    return _shown(SETTINGS[field], value)


def shown_default(field: str) -> str:
    """Return the readable default of a field."""
    return shown_value(field, getattr(DatabaseSettings(), field))


@contextmanager
def named_options(dashes: str) -> Iterator[None]:
    """Replace the names of settings in an error message by the names of options."""
    try:
        yield
    except UsageError as exc:
        sentence = str(exc)
        for field, setting in SETTINGS.items():
            sentence = re.sub(rf"\b(?:setting )?{field}\b", f"{dashes}{setting.option}", sentence)
        raise UsageError(sentence) from exc


def parse_changes(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `name=value` texts; a name is that of the option or the field. Raises: UsageError."""
    fields = {setting.option.replace("-", "_"): field for field, setting in SETTINGS.items()}
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        plain = name.strip().removeprefix("--").replace("-", "_")
        field = fields.get(plain, plain)
        if not equals or field not in SETTINGS:
            names = ", ".join(setting.option for setting in SETTINGS.values())
            if not equals:
                raise UsageError(f"expected NAME=VALUE, as in retain=30d, got {assignment!r}")
            raise UsageError(f"unknown setting {name.strip()!r} (known: {names})")
        try:
            is_none = text == "none" and getattr(DatabaseSettings(), field) is None
            changes[field] = None if is_none else SETTINGS[field].parse(text)
        except UsageError as exc:
            raise UsageError(f"{SETTINGS[field].option}: {exc}") from exc
    return changes
