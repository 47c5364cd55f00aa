"""The options of the source: parsed and checked once, then frozen.

Spark passes options as text, with names in any case. Times are absolute: a relative time would
change each time that a query is planned again.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from siltstone.clock import Clock, SystemClock
from siltstone.errors import InvalidTopicError, UsageError
from siltstone.scan.columns.schema import COLUMNS
from siltstone.scan.node import NODE_OPTIONS, Node, node_from
from siltstone.store.feed.position import EARLIEST, END, LATEST, START, Position, shortened
from siltstone.topic.grammar import TopicFilter
from siltstone.units import SECOND_US

Decode = Literal["raw", "utf8", "json"]
DECODES: Final[tuple[Decode, ...]] = ("raw", "utf8", "json")
ROWS_PER_BATCH_MAX: Final = 65_536
# Options that Spark adds for a table in its catalog, besides those of the user.
_OF_CATALOG: Final = frozenset(
    {"collation", "comment", "external", "is_managed_location", "location", "owner", "provider"}
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A number is seconds below the first bound, milliseconds below the second, else microseconds.
_SECONDS_END: Final = 100_000_000_000
_MILLISECONDS_END: Final = 100_000_000_000_000
_TIME_END_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE)
_SHARD_DIGITS_MAX: Final = 9
_RELATIVE: Final = re.compile(r"-\s*(\d.*)")
_DURATIONS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
# How to accept that rows are missing: the option of a query, and the flag of `siltstone sql`.
ACCEPT_LOSS: Final = "set failOnDataLoss=false (siltstone sql: --ignore-loss)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    """The times at which a query starts: by shard, and for the other shards (None: earliest)."""

    default_us: int | None = None
    times_us: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def of(self, shard: int) -> int | None:
        """Return the time of a shard in µs; None for its earliest row."""
        return self.times_us.get(shard, self.default_us)

    def to_text(self) -> str:
        """Return the text of the option."""
        if not self.times_us:
            return _time_text(self.default_us or 0)
        return json.dumps({str(key): _time_text(time) for key, time in self.times_us.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read: its rows, its store, and its limits."""

    path: str = ""
    node: Node | None = None
    database: str = ""
    filters: tuple[str, ...] = ("#",)
    since_us: int = 0
    until_us: int | None = None
    starting: Position = START
    starting_times: StartTimes | None = None
    ending: Position = END
    columns: tuple[str, ...] = COLUMNS
    decode: Decode = "raw"
    payload_schema: str = ""
    rows_per_batch: int = 16_384
    rows_per_partition: int | None = None
    bytes_per_partition: int = 128 * 1024 * 1024
    partitions_min: int = 1
    fails_on_loss: bool = True
    # How the caller accepts losses, for messages.
    accept_loss: str = ACCEPT_LOSS
    rows_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    rows_to_wait_for: int | None = None
    wait_max: float = 900.0

    @property
    def place(self) -> str:
        """The path or URL of the store, for messages."""
        return self.path if self.node is None else self.node.url

    def batch_start(self) -> Position:
        """Return the start of a batch query. Raises: UsageError."""
        if self.starting == END:
            raise UsageError(
                "startingOffsets of a batch query must not be latest: no rows would follow"
            )
        if self.ending == START:
            raise UsageError("endingOffsets must not be earliest: no rows come before")
        return self.starting

    def stream_start(self) -> Position:
        """Return the start of a streaming query without a checkpoint. Raises: UsageError."""
        if self.ending != END:
            raise UsageError("endingOffsets is for batch queries only: a stream does not end")
        return self.starting


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse and check the options. Raises: UsageError."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    if not given:
        raise UsageError(
            "path is missing: call load with the data directory of the store, or set url to a "
            "node; a table made with CREATE TABLE loses its options, so use a temporary view"
        )
    node = node_from(given)
    if node is None and not given.get("path"):
        raise UsageError(
            "path is missing: set path to the data directory of the store, or url to a node"
        )
    values: dict[str, Any] = {"path": plain_path(given.get("path", "")), "node": node}
    for name, (field, parse) in _PARSERS.items():
        text = given.get(name.lower())
        if text is not None:
            try:
                values[field] = parse(text, name)
            except (ValueError, OverflowError, RecursionError) as exc:
                raise UsageError(
                    f"{name} is nested too deeply, or has a number with too many digits: "
                    f"{name}={shortened(text)}"
                ) from exc
    parsed = ReadOptions(**values)
    if parsed.until_us is not None and parsed.until_us < parsed.since_us:
        raise UsageError("endTime must not be before startTime")
    if parsed.starting_times is not None and "startingoffsets" in given:
        raise UsageError("set either startingOffsets or startingOffsetsByTimestamp, not both")
    if parsed.payload_schema and parsed.decode != "json":
        raise UsageError("payloadSchema needs decode=json")
    if (parsed.rows_to_wait_for or 0) > (parsed.rows_per_trigger or parsed.rows_to_wait_for or 0):
        raise UsageError("minRowsPerTrigger must not be greater than maxRowsPerTrigger")
    return parsed


def plain_path(path: str) -> str:
    """Return the path of a file; Spark may have made a file: URI of it."""
    return re.sub("^file:/+", "/", path)


def request_options(options: ReadOptions) -> dict[str, str]:
    """Return the options that say what to read, as text for `parse_options`.

    The place of the store, and the options that the reader itself applies, are left out.
    """
    request = {
        "filter": json.dumps(options.filters),
        "startTime": _time_text(options.since_us),
        "endingOffsets": options.ending.to_text(),
        "columns": ",".join(options.columns),
        "rowsPerBatch": str(options.rows_per_batch),
        "maxBytesPerPartition": str(options.bytes_per_partition),
        "failOnDataLoss": str(options.fails_on_loss).lower(),
    }
    if options.starting_times is None:
        request["startingOffsets"] = options.starting.to_text()
    else:
        request["startingOffsetsByTimestamp"] = options.starting_times.to_text()
    if options.partitions_min > 1:
        request["minPartitions"] = str(options.partitions_min)
    if options.database:
        request["database"] = options.database
    if options.until_us is not None:
        request["endTime"] = _time_text(options.until_us)
    if options.rows_per_partition is not None:
        request["maxRowsPerPartition"] = str(options.rows_per_partition)
    return request


def _time_text(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat()


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTIONS}
    for name in given:
        if name not in known and name not in _OF_CATALOG and not name.startswith("option."):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {known[near[0]]}?" if near else f"supported: {', '.join(OPTIONS)}"
            raise UsageError(f"unknown option {name}; {hint}")


def parse_filters(text: str, name: str) -> tuple[str, ...]:
    """Parse topic filters: a JSON list, or text separated by commas or lines.

    A filter that contains a comma must be in a JSON list.

    Raises: UsageError.
    """
    if text.lstrip().startswith("["):
        try:
            filters = json.loads(text)
        except json.JSONDecodeError as exc:
            raise UsageError(f"{name} begins with [ and must be a JSON list: {exc}") from exc
        if not all(isinstance(item, str) for item in filters):
            raise UsageError(f"{name} must be a list of text: {name}={text!r}")
    else:
        filters = [item.strip() for item in re.split(r"[,\n]", text) if item.strip()]
    if not filters:
        raise UsageError(f"{name} must have at least one topic filter; # matches every topic")
    for item in filters:
        try:
            parsed = TopicFilter.parse(item)
        except InvalidTopicError as exc:
            raise UsageError(f"{name} must be an MQTT topic filter: {exc}") from exc
        if parsed.group is not None:
            raise UsageError(
                f"{name} must not be a shared filter, remove $share/…: {name}={item!r}"
            )
    return tuple(dict.fromkeys(filters))


def parse_time(text: str, name: str) -> int:
    """Parse a time and return µs: ISO 8601 (UTC if it has no zone), or a number since 1970.

    The size of the number tells whether it is in seconds, milliseconds or microseconds.
    """
    word = text.strip()
    if word.isdecimal():
        number = int(word)
        if number < _SECONDS_END:
            return number * SECOND_US
        time_us = number * 1000 if number < _MILLISECONDS_END else number
        if time_us >= _TIME_END_US:
            raise UsageError(f"{name} must not be after the year 9999: {name}={shortened(text)}")
        return time_us
    try:
        moment = datetime.fromisoformat(word)
    except ValueError as exc:
        raise UsageError(
            f"{name} must be a time such as 2026-01-31T12:00:00Z, or a number of seconds, "
            f"milliseconds or microseconds since 1970: "
            f"{name}={text!r}"
        ) from exc
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    time_us = (moment - _EPOCH) // timedelta(microseconds=1)
    if time_us < 0:
        raise UsageError(f"{name} must not be before 1970: {name}={text!r}")
    return time_us


def parse_start_times(text: str, name: str, clock: Clock | None = None) -> StartTimes:
    """Parse a time for all shards, or a JSON object of times by shard. Raises: UsageError.

    A time is absolute, or relative to now, such as -1h. A relative time is safe here and not in
    startTime: it becomes serials when a query starts, and a checkpoint keeps these.
    """
    now_us = (clock or SystemClock()).now_us()
    if not text.lstrip().startswith("{"):
        return StartTimes(default_us=_start_time(text, name, now_us))
    try:
        values = json.loads(text)
    except json.JSONDecodeError as exc:
        raise UsageError(f"{name} begins with {{ and must be a JSON object: {exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise UsageError(
            f"{name} is nested too deeply, or has a number with too many digits: "
            f"{name}={shortened(text)}"
        ) from exc
    if wrong := [key for key in values if not key.isdecimal() or len(key) > _SHARD_DIGITS_MAX]:
        raise UsageError(
            f"{name} must have the numbers of shards as keys: shard={shortened(wrong[0])}"
        )
    times = {int(key): _start_time(str(value), name, now_us) for key, value in values.items()}
    return StartTimes(times_us=times)


def _start_time(text: str, name: str, now_us: int) -> int:
    relative = _RELATIVE.fullmatch(text.strip())
    if relative is None:
        try:
            return parse_time(text, name)
        except UsageError as exc:
            more = "a time before now such as -1h, or a number"
            raise UsageError(str(exc).replace("or a number", more, 1)) from exc
    return max(0, now_us - round(parse_duration(relative[1], name) * SECOND_US))


def _parse_columns(text: str, name: str) -> tuple[str, ...]:
    columns = [item.strip() for item in text.split(",") if item.strip()]
    if not columns:
        raise UsageError(f"{name} must have at least one column (supported: {', '.join(COLUMNS)})")
    if unknown := [item for item in columns if item not in COLUMNS]:
        raise UsageError(f"unknown column {', '.join(unknown)} (supported: {', '.join(COLUMNS)})")
    if len(set(columns)) < len(columns):
        raise UsageError(f"{name} must not repeat a column: {name}={text!r}")
    return tuple(columns)


def _parse_decode(text: str, name: str) -> Decode:
    for known in DECODES:
        if text.strip().lower() == known:
            return known
    raise UsageError(f"{name} must be one of {', '.join(DECODES)}: {name}={text!r}")


def _parse_count(text: str, name: str, highest: int = 1 << 62) -> int:
    word = text.strip()
    if not word.isdecimal() or not 1 <= int(word) <= highest:
        bound = f"from 1 to {highest}" if highest < 1 << 62 else "of 1 or more"
        raise UsageError(f"{name} must be a number {bound}: {name}={text!r}")
    return int(word)


def _parse_size(text: str, name: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(
            f"{name} must be a size such as 64MiB, or a number of bytes: {name}={text!r}"
        )
    return int(match[1]) * _SIZES[match[2].lower()]


def parse_duration(text: str, name: str) -> float:
    """Parse a duration and return seconds. Raises: UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{name} must be a duration such as 500ms, 30s or 15m: {name}={text!r}")
    return float(match[1]) * _DURATIONS[match[2].lower()]


def _parse_flag(text: str, name: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise UsageError(f"{name} must be true or false: {name}={text!r}")
    return word == "true"


def _as_given(text: str, name: str) -> str:
    if not text.strip():
        raise UsageError(f"{name} is empty: remove it or set a value")
    return text.strip()


_PARSERS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "database": ("database", _as_given),
    "filter": ("filters", parse_filters),
    "startTime": ("since_us", parse_time),
    "endTime": ("until_us", parse_time),
    "startingOffsets": (
        "starting",
        lambda text, name: Position.parse(text, name, default=EARLIEST),
    ),
    "startingOffsetsByTimestamp": ("starting_times", parse_start_times),
    "endingOffsets": ("ending", lambda text, name: Position.parse(text, name, default=LATEST)),
    "columns": ("columns", _parse_columns),
    "decode": ("decode", _parse_decode),
    "payloadSchema": ("payload_schema", _as_given),
    "rowsPerBatch": (
        "rows_per_batch",
        lambda text, name: _parse_count(text, name, ROWS_PER_BATCH_MAX),
    ),
    "maxRowsPerPartition": ("rows_per_partition", _parse_count),
    "maxBytesPerPartition": ("bytes_per_partition", _parse_size),
    "minPartitions": ("partitions_min", _parse_count),
    "failOnDataLoss": ("fails_on_loss", _parse_flag),
    "maxRowsPerTrigger": ("rows_per_trigger", _parse_count),
    "maxBytesPerTrigger": ("bytes_per_trigger", _parse_size),
    "minRowsPerTrigger": ("rows_to_wait_for", _parse_count),
    "maxTriggerDelay": ("wait_max", parse_duration),
}
OPTIONS: Final = ("path", *NODE_OPTIONS, *_PARSERS)
