"""An option of `siltstone db create` for every setting of a database."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from siltstone.cli.options import converted
from siltstone.cli.store.settings import SETTINGS, shown_default

THRESHOLD_HELP: Final = (
    "Number of distinct words per topic level before the level is treated as variable. The last "
    "number applies to deeper levels."
)


def _option(field: str, metavar: str, text: str) -> Any:
    setting = SETTINGS[field]
    return typer.Option(
        f"--{setting.option}",
        parser=converted(setting.parse),
        metavar=metavar,
        help=text,
        show_default=shown_default(field),
    )


Shards = Annotated[
    int | None, _option("shards", "N", "Number of shards. Each has a writer thread.")
]
ShardBy = Annotated[
    str | None, _option("shard_by", "publisher|topic", "Column that selects the shard of a row.")
]
Thresholds = Annotated[
    # typer takes a tuple for an option with many values, and refuses a parser for it.
    Any,
    _option("thresholds", "N,N…", THRESHOLD_HELP),
]
SegmentBytes = Annotated[int | None, _option("segment_bytes", "SIZE", "Size of a segment file.")]
Compression = Annotated[
    str | None, _option("compression", "none|zstd|lz4", "Compression of the rows.")
]
FlushInterval = Annotated[
    float | None,
    _option(
        "flush_interval", "TIME", "Longest time that a row waits before it is written, as 10ms."
    ),
]
IdleFlushInterval = Annotated[
    float | None,
    _option(
        "idle_flush_interval",
        "TIME",
        "Write waiting rows when no row arrives for this long, as 1ms.",
    ),
]
MaxItems = Annotated[
    int | None, _option("max_items", "N", "Number of waiting rows that starts a write at once.")
]
SyncInterval = Annotated[
    float | None,
    _option("sync_interval", "TIME", "Time between syncs of rows with durability written or none."),
]
PendingBytes = Annotated[
    int | None,
    _option("pending_bytes_max", "SIZE", "Size of waiting rows beyond which appends block."),
]
TopicCache = Annotated[
    int | None, _option("topic_cache", "N", "Number of topics that a shard keeps in memory.")
]
Rotate = Annotated[
    float | None, _option("rotate_seconds", "TIME", "Time between generations, as 1d.")
]
RotateBytes = Annotated[
    int | None, _option("rotate_bytes", "SIZE", "Size at which a new generation starts, as 1GiB.")
]
Retain = Annotated[
    float | None,
    _option("retain_seconds", "TIME", "Age at which sealed slabs are dropped, as 30d."),
]
RetainBytes = Annotated[
    int | None,
    _option("retain_bytes", "SIZE", "Total size beyond which the oldest sealed slabs are dropped."),
]
Reclaim = Annotated[
    str | None,
    _option(
        "reclaim",
        "none|delivered",
        "What a broker drops before that: sealed slabs that all sessions have read.",
    ),
]
Quota = Annotated[
    int | None,
    _option(
        "quota_bytes",
        "SIZE",
        "Size on disk beyond which appends are refused. Space is allocated in steps; the last "
        "step may exceed the quota.",
    ),
]
Reserve = Annotated[
    int | None, _option("reserve_bytes", "SIZE", "Free disk space below which appends are refused.")
]
Backend = Annotated[
    str | None,
    _option(
        "backend",
        "local|replicated",
        "Where the shards are: on this machine, or on several sites of a cluster.",
    ),
]
