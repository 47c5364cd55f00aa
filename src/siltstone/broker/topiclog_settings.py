"""The settings of topic logs: their listener, their files, and what of them goes to subscribers."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final, Self

from pydantic import Field, model_validator

from siltstone.broker.setting_types import (
    Count,
    FilterText,
    OptionalSeconds,
    OptionalSize,
    Seconds,
    Settings,
    Size,
    wrong,
)
from siltstone.segment.segment import SEGMENT_BYTES_MIN
from siltstone.store.settings import VALUE_BYTES_MAX, DatabaseSettings

MIB: Final = 1024 * 1024
_DEFAULTS: Final = DatabaseSettings()
# What is of the database, and follows `siltstone db set` once that exists.
OF_THE_DATABASE: Final = frozenset(
    {
        "segment_bytes",
        "rotate_seconds",
        "rotate_bytes",
        "retain_seconds",
        "retain_bytes",
        "quota_bytes",
    }
)


class TopicLogPublish(Settings):
    """Topics whose messages are published to MQTT subscribers once they are stored; the first that
    matches holds.
    """

    filter: FilterText = Field(description="The topics, as they were created.")
    prefix: str = Field(default="", description="What their names begin with for subscribers.")
    qos: Count = Field(default=1, ge=0, le=2, description="The QoS that they are published with.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if set(self.prefix) & set("+#\0"):
            raise wrong("must not have the wildcards + and #, or U+0000", "prefix")
        return self


class TopicLogSettings(Settings):
    """Topic logs, for clients that do not speak MQTT. There are no users: who reaches the listener
    may do everything. What is said of files is for a database that is yet to be made.
    """

    enabled: bool = Field(default=False, description="Whether topic logs are served.")
    host: str = Field(
        default="127.0.0.1", description='The address to bind; "0.0.0.0" or "::" for all.'
    )
    port: Count = Field(
        default=9410, ge=0, le=65_535, description="The port to bind; 0: any that is free."
    )
    allow_anonymous: bool = Field(
        default=False, description="Whether other machines may reach it, whoever they are."
    )
    connections_max: Count = Field(default=10_000, ge=1, description="Clients connected at once.")
    message_size_max: Size = Field(
        default=VALUE_BYTES_MAX,
        ge=1024,
        le=VALUE_BYTES_MAX,
        description="The largest send, of one message or many.",
    )
    pending_bytes_max: Size = Field(
        default=64 * MIB,
        ge=64 * 1024,
        description="Bytes of sends that wait for the disk before sockets stop being read.",
    )
    reserved_bytes_max: Size = Field(
        default=1024 * MIB,
        ge=MIB,
        description="Bytes of large sends that are on their way; more are refused.",
    )
    body_timeout: Seconds = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="A large send of which less than 16 KiB come in so long is cut off.",
    )
    idle_timeout: Seconds = Field(
        default=3600.0,
        ge=0,
        description="A connection on which nothing comes or is answered for so long is closed; one "
        "that waits for messages is not. 0: never.",
    )
    segment_bytes: Size = Field(
        default=_DEFAULTS.segment_bytes,
        ge=SEGMENT_BYTES_MIN,
        le=1 << 40,
        multiple_of=4096,
        description="The size of a segment file; each topic has its own.",
    )
    rotate_seconds: OptionalSeconds = Field(
        default=None, gt=0, description="Begin a new generation of each topic so often."
    )
    rotate_bytes: OptionalSize = Field(
        default=None, gt=0, description="Begin a new generation of a topic at this size."
    )
    retain_seconds: OptionalSeconds = Field(
        default=None, gt=0, description="Drop sealed generations that are older."
    )
    retain_bytes: OptionalSize = Field(
        default=None, gt=0, description="Drop the oldest sealed generations beyond this size."
    )
    quota_bytes: OptionalSize = Field(
        default=None, gt=0, description="Refuse sends beyond this size of all topics."
    )
    publish: tuple[TopicLogPublish, ...] = Field(
        default=(), description="What is published to MQTT subscribers."
    )

    def database_settings(self) -> DatabaseSettings:
        """Return the settings of the database, should it have to be created."""
        return DatabaseSettings(shard_by="topic", **self.model_dump(include=set(OF_THE_DATABASE)))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.enabled and not self.allow_anonymous and not _is_loopback(self.host):
            raise wrong(
                "is not a loopback address, and topic logs have no login: set allow_anonymous = "
                "true if you trust every client of this network",
                "host",
            )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
