"""The settings of what is kept: messages, sessions, share groups."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from siltstone.broker.setting_types import (
    DAY,
    U32_MAX,
    Count,
    DatabaseName,
    FilterText,
    OptionalSeconds,
    OptionalSize,
    Seconds,
    Settings,
    Size,
    Thresholds,
)
from siltstone.segment.segment import SEGMENT_BYTES_MIN
from siltstone.store.settings import DatabaseSettings

_DEFAULTS: Final = DatabaseSettings()
# What is the broker's own, and no setting of the database.
# Unless it is set, no more than this part of the disk is kept free.
_DISK_SHARE: Final = 8
OF_THE_BROKER: Final = frozenset({"database", "rules", "keep_free_bytes"})


class StoreRule(Settings):
    """What is stored of the topics that a filter matches; the first rule that matches holds."""

    filter: FilterText = Field(description="The topics that this rule is for.")
    store: Literal["always", "subscribed", "offline", "never"] = Field(
        default="always",
        description="When their messages are stored: always, when a durable session has a"
        " subscription for them, when one of QoS 1 or 2 is away that does, or never.",
    )
    durability: Literal["synced", "written", "none"] = Field(
        default="synced",
        description="What an acknowledged message survives: a power cut, the end of the process, "
        "or nothing.",
    )


class Storage(Settings):
    """Where messages are stored, and how. All but `database` and `rules` is for a database that
    the broker creates; `siltstone db set` changes one that exists.
    """

    database: DatabaseName = Field(
        default="messages", description="The database that publishes are appended to."
    )
    rules: tuple[StoreRule, ...] = Field(
        default=(),
        description="What is stored, by topic filter; without a match: always, synced.",
    )
    shards: Count = Field(
        default=_DEFAULTS.shards, ge=1, le=16_384, description="How many threads write."
    )
    thresholds: Thresholds = Field(
        default=_DEFAULTS.thresholds,
        description="Words that a topic level keeps apart before the next becomes varying, level "
        "by level; the last holds below too. 0: all vary, -1: none.",
    )
    segment_bytes: Size = Field(
        default=_DEFAULTS.segment_bytes,
        ge=SEGMENT_BYTES_MIN,
        le=1 << 40,
        multiple_of=4096,
        description="The size of a segment file.",
    )
    compression: Literal["none", "zstd", "lz4"] = Field(
        default="none", description="How flushes are compressed."
    )
    flush_interval: Seconds = Field(
        default=_DEFAULTS.flush_interval,
        ge=0,
        le=3600,
        description="The longest that a row waits for a flush.",
    )
    idle_flush_interval: Seconds = Field(
        default=_DEFAULTS.idle_flush_interval,
        ge=0,
        le=3600,
        description="Flush when no row came for so long.",
    )
    rotate_seconds: OptionalSeconds = Field(
        default=_DEFAULTS.rotate_seconds, gt=0, description="Begin a new generation so often."
    )
    rotate_bytes: OptionalSize = Field(
        default=_DEFAULTS.rotate_bytes, gt=0, description="Begin a new generation at this size."
    )
    retain_seconds: OptionalSeconds = Field(
        default=_DEFAULTS.retain_seconds, gt=0, description="Drop sealed slabs that are older."
    )
    retain_bytes: OptionalSize = Field(
        default=_DEFAULTS.retain_bytes,
        gt=0,
        description="Drop the oldest sealed slabs beyond this size.",
    )
    reclaim: Literal["none", "delivered"] = Field(
        default="none",
        description="What is dropped before that: nothing, or sealed slabs of which no durable"
        " session and no share group needs a message. Other readers of the store miss these"
        " messages, unless the database is tiered.",
    )
    quota_bytes: OptionalSize = Field(
        default=_DEFAULTS.quota_bytes,
        gt=0,
        description="Refuse publishes beyond this size on the disk, passed by a step at most.",
    )

    keep_free_bytes: Size = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Refuse publishes when the disk has less left; the positions of sessions have"
        " it for themselves. Also for a database that exists. Unless you set it, it is at most an"
        " eighth of the disk.",
    )

    def keep_free(self, disk_bytes: int) -> int:
        """Return what publishers leave free on a disk of this size."""
        if "keep_free_bytes" in self.model_fields_set:
            return self.keep_free_bytes
        # A small disk would else refuse the first message.
        return min(self.keep_free_bytes, disk_bytes // _DISK_SHARE)

    def database_settings(self) -> DatabaseSettings:
        """Return the settings of the database, should it have to be created."""
        return DatabaseSettings(**self.model_dump(exclude=set(OF_THE_BROKER)))


class ShareSettings(Settings):
    """How a shared subscription picks the member that gets a message."""

    strategy: Literal["least-loaded", "round-robin", "random", "sticky", "sticky-topic"] = Field(
        default="least-loaded",
        description="How the next member is chosen; sticky is always the same one for a publisher, "
        "sticky-topic for a topic.",
    )
    loan_timeout: Seconds = Field(
        default=30.0,
        gt=0,
        description="How long a member may acknowledge nothing before others get its messages.",
    )
    expiry: Seconds = Field(
        default=7 * DAY,
        ge=0,
        le=U32_MAX,
        description="How long a group of durable sessions keeps its place without members.",
    )


class SessionSettings(Settings):
    """Sessions that outlive their connections."""

    durable: bool = Field(
        default=True,
        description="Whether they survive the broker too, and read what they missed from the store;"
        " else they wait in memory.",
    )
    backlog_messages_max: Count = Field(
        default=0,
        ge=0,
        description="Messages that a session finds waiting when its client returns; 0 is no limit.",
    )
    backlog_bytes_max: Size = Field(
        default=0, ge=0, description="Bytes of messages that it finds waiting; 0 is no limit."
    )
    backlog_age_max: Seconds = Field(
        default=0.0, ge=0, description="Age of the oldest message that it gets; 0 is no limit."
    )
    backlog_policy: Literal["drop-old", "drop-new"] = Field(
        default="drop-old", description="Which messages go where there are more than that."
    )
