"""Siltstone: a durable message store that speaks MQTT and is read by Spark."""

from siltstone.database import Database, Read, SlabInfo, StreamInfo
from siltstone.directory import Store
from siltstone.directory import open_store as open  # noqa: A004 - siltstone.open reads as it should
from siltstone.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    ExistsError,
    InvalidTopicError,
    LockedError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    SlabDroppedError,
    StorageFullError,
    UsageError,
)
from siltstone.store.iterator import StreamIterator, StreamRef
from siltstone.store.manifest import SlabId
from siltstone.store.outcome import Ticket
from siltstone.store.partition import Columns
from siltstone.store.rows import COLUMNS, SCHEMA, Batch, Row
from siltstone.store.scan import Status
from siltstone.store.settings import DatabaseSettings
from siltstone.topic.grammar import TopicFilter

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "Batch",
    "ClosedError",
    "Columns",
    "CorruptionError",
    "Database",
    "DatabaseSettings",
    "DiskError",
    "ExistsError",
    "InvalidTopicError",
    "LockedError",
    "NotFoundError",
    "OutcomeUnknownError",
    "OverloadedError",
    "PoisonedError",
    "QuotaExceededError",
    "Read",
    "RetryError",
    "Row",
    "SiltstoneError",
    "SlabDroppedError",
    "SlabId",
    "SlabInfo",
    "Status",
    "StorageFullError",
    "Store",
    "StreamInfo",
    "StreamIterator",
    "StreamRef",
    "Ticket",
    "TopicFilter",
    "UsageError",
    "open",
]
