"""The settings of storage: messages, sessions, share groups."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from siltstone.broker.settings.kinds import (
    DAY,
    U32_MAX,
    Count,
    DatabaseName,
    FilterText,
    Seconds,
    Settings,
    Size,
)
from siltstone.broker.settings.tables import table_of

# The default keeps at most this fraction (one eighth) of the disk free.
_DISK_SHARE: Final = 8


class StoreRule(Settings):
    """A rule for the storage of the messages of matching topics. The first rule that matches a
    topic applies.
    """

    filter: FilterText = Field(description="Topics to which this rule applies.")
    store: Literal["always", "subscribed", "offline", "never"] = Field(
        default="always",
        description="When messages are stored. subscribed: if a durable session has a matching "
        "subscription; offline: if a session with a matching subscription of QoS 1 or 2 is "
        "offline and the message has QoS 1 or 2.",
    )
    durability: Literal["synced", "written", "none"] = Field(
        default="synced",
        description="What an acknowledged message survives. synced: a power cut; written: a crash "
        "of the broker; none: nothing.",
    )


class Storage(table_of()):  # type: ignore[misc]
    """How messages are stored. `database`, `rules` and `keep_free_bytes` always apply. The other
    keys apply when the broker creates the database; `siltstone db set` changes an existing
    database.
    """

    database: DatabaseName = Field(
        default="messages", description="Database that stores the messages."
    )
    rules: tuple[StoreRule, ...] = Field(
        default=(),
        description="Storage rules by topic filter. A message without a matching rule is stored "
        "and synced.",
    )
    keep_free_bytes: Size = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Free disk space below which messages are refused. The space is reserved for "
        "the state of sessions. The default is at most an eighth of the disk.",
    )

    def keep_free(self, disk_bytes: int) -> int:
        """Return the bytes that publishers leave free on a disk of this size."""
        if "keep_free_bytes" in self.model_fields_set:
            return self.keep_free_bytes
        # Otherwise a small disk would refuse the first message.
        return min(self.keep_free_bytes, disk_bytes // _DISK_SHARE)


class ShareSettings(Settings):
    """How a shared subscription selects the member that receives a message."""

    strategy: Literal["least-loaded", "round-robin", "random", "sticky", "sticky-topic"] = Field(
        default="least-loaded",
        description="How the broker selects the next member. sticky: always the same member for a "
        "publisher; sticky-topic: always the same member for a topic.",
    )
    loan_timeout: Seconds = Field(
        default=30.0,
        gt=0,
        description="Time without an acknowledgement after which the messages of a member go to "
        "other members.",
    )
    expiry: Seconds = Field(
        default=7 * DAY,
        ge=0,
        le=U32_MAX,
        description="Time that a group with durable sessions keeps its position without members.",
    )


class SessionSettings(Settings):
    """Sessions that outlive their connections."""

    durable: bool = Field(
        default=True,
        description="Whether sessions survive the broker and read missed messages from the store. "
        "Otherwise messages wait in memory.",
    )
    backlog_messages_max: Count = Field(
        default=0,
        ge=0,
        description="Largest number of missed messages that a returning session receives. 0: no "
        "limit.",
    )
    backlog_bytes_max: Size = Field(
        default=0,
        ge=0,
        description="Largest size of the missed messages that a returning session receives. 0: no "
        "limit.",
    )
    backlog_age_max: Seconds = Field(
        default=0.0,
        ge=0,
        description="Largest age of the missed messages that a returning session receives. 0: no "
        "limit.",
    )
    backlog_policy: Literal["drop-old", "drop-new"] = Field(
        default="drop-old",
        description="Which messages are dropped beyond these limits: the oldest or the newest "
        "ones.",
    )
