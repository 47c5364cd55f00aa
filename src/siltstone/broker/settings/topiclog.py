"""The settings of topic logs: their listener, their files, and the topics that are published to
MQTT.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Final, Self

from pydantic import Field, model_validator

from siltstone.broker.settings.kinds import (
    Count,
    FilterText,
    Seconds,
    Settings,
    Size,
    wrong,
)
from siltstone.broker.settings.tables import table_of
from siltstone.store.slab.settings import VALUE_BYTES_MAX, DatabaseSettings

MIB: Final = 1024 * 1024
# The settings of the database. `siltstone db set` changes them once the database exists.
_OF_THE_DATABASE: Final = (
    "segment_bytes",
    "rotate_seconds",
    "rotate_bytes",
    "retain_seconds",
    "retain_bytes",
    "quota_bytes",
)


class TopicLogPublish(Settings):
    """Topic logs whose stored messages are also published to MQTT subscribers. The first entry that
    matches a topic applies.
    """

    filter: FilterText = Field(description="Filter of topic logs.")
    prefix: str = Field(default="", description="Prefix of the MQTT topic.")
    qos: Count = Field(default=1, ge=0, le=2, description="QoS of the published messages.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if set(self.prefix) & set("+#\0"):
            raise wrong("must not have the wildcards + and #, or U+0000", "prefix")
        return self


class TopicLogSettings(table_of(_OF_THE_DATABASE)):  # type: ignore[misc]
    """Topic logs, for clients that do not speak MQTT. There are no users: every client that reaches
    the listener may do everything. The keys from `segment_bytes` to `quota_bytes` apply when the
    broker creates the database; `siltstone db set` changes an existing one.
    """

    enabled: bool = Field(default=False, description="Whether the broker serves topic logs.")
    host: str = Field(
        default="127.0.0.1", description='Address to listen on. "0.0.0.0" or "::": all addresses.'
    )
    port: Count = Field(
        default=9410, ge=0, le=65_535, description="Port to listen on. 0: any free port."
    )
    allow_anonymous: bool = Field(
        default=False,
        description="Whether the listener may be on an address that other machines can reach. "
        "Every client there may do everything.",
    )
    connections_max: Count = Field(
        default=10_000, ge=1, description="Largest number of connected clients."
    )
    message_size_max: Size = Field(
        default=VALUE_BYTES_MAX,
        ge=1024,
        le=VALUE_BYTES_MAX,
        description="Largest size of one send, with one message or many.",
    )
    pending_bytes_max: Size = Field(
        default=64 * MIB,
        ge=64 * 1024,
        description="Size of the sends that wait for the disk above which the broker stops "
        "reading from clients.",
    )
    reserved_bytes_max: Size = Field(
        default=1024 * MIB,
        ge=MIB,
        description="Largest size of all large sends that are being received. Further ones are "
        "refused.",
    )
    body_timeout: Seconds = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="The broker ends a large send if less than 16 KiB arrive in this time.",
    )
    idle_timeout: Seconds = Field(
        default=3600.0,
        ge=0,
        description="Time after which an idle connection is closed. A connection that waits for "
        "messages is not idle. 0: never.",
    )
    publish: tuple[TopicLogPublish, ...] = Field(
        default=(), description="Topic logs that are also published to MQTT subscribers."
    )

    def database_settings(self) -> DatabaseSettings:
        """Return the settings for a new database."""
        settings: DatabaseSettings = super().database_settings()
        return replace(settings, shard_by="topic")

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
