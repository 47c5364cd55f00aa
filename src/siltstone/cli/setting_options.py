"""An option of `siltstone db create` for every setting of a database."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from siltstone.cli.options import converted
from siltstone.cli.settings import SETTINGS, shown_default


def _option(field: str, metavar: str, text: str) -> Any:
    setting = SETTINGS[field]
    return typer.Option(
        f"--{setting.option}",
        parser=converted(setting.parse),
        metavar=metavar,
        help=text,
        show_default=shown_default(field),
    )


Shards = Annotated[int | None, _option("shards", "N", "How many threads write.")]
ShardBy = Annotated[
    str | None, _option("shard_by", "publisher|topic", "What decides on a row's shard.")
]
Thresholds = Annotated[
    # typer takes a tuple for an option with many values, and refuses a parser for it.
    Any,
    _option(
        "thresholds", "N,N…", "Words that a level keeps apart before the rest vary; last: below."
    ),
]
SegmentBytes = Annotated[int | None, _option("segment_bytes", "SIZE", "The size of a file.")]
Compression = Annotated[
    str | None, _option("compression", "none|zstd|lz4", "How flushes are compressed.")
]
FlushInterval = Annotated[
    float | None, _option("flush_interval", "TIME", "The longest that a row waits for a flush.")
]
IdleFlushInterval = Annotated[
    float | None, _option("idle_flush_interval", "TIME", "Flush when no row came for so long.")
]
MaxItems = Annotated[int | None, _option("max_items", "N", "Flush when so many rows wait.")]
SyncInterval = Annotated[
    float | None, _option("sync_interval", "TIME", "How often rows are synced that nobody awaits.")
]
PendingBytes = Annotated[
    int | None, _option("pending_bytes_max", "SIZE", "How much may wait before appends do.")
]
TopicCache = Annotated[
    int | None, _option("topic_cache", "N", "How many topics a shard remembers.")
]
Rotate = Annotated[
    float | None, _option("rotate_seconds", "TIME", "Begin a new generation so often.")
]
RotateBytes = Annotated[
    int | None, _option("rotate_bytes", "SIZE", "Begin a new generation at this size.")
]
Retain = Annotated[
    float | None, _option("retain_seconds", "TIME", "Drop sealed slabs that are older.")
]
RetainBytes = Annotated[
    int | None, _option("retain_bytes", "SIZE", "Drop the oldest sealed slabs beyond this size.")
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
        "Refuse appends beyond this size. Allocated disk space counts, so the last step of "
        "allocation may pass it.",
    ),
]
Reserve = Annotated[
    int | None, _option("reserve_bytes", "SIZE", "Refuse appends when the disk has less left.")
]
