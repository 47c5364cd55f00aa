"""The public names of the package, and nothing else."""

from siltstone.database import Database, Read
from siltstone.directory import Store
from siltstone.directory import open_store as open  # noqa: A004 - siltstone.open reads as it should
from siltstone.errors import (
    ClosedError,
    ConflictError,
    CorruptionError,
    DiskError,
    ExistsError,
    FencedError,
    InvalidTopicError,
    LockedError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    PreconditionError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    SlabDroppedError,
    StorageFullError,
    Unmet,
    UsageError,
)
from siltstone.feed.position import FeedPosition
from siltstone.feed.reader import FeedRead, FeedReader
from siltstone.flight.connection import Connection, connect
from siltstone.keyvalue import KeyValueDatabase
from siltstone.store.info import Hole, SlabInfo, StreamInfo
from siltstone.store.iterator import StreamIterator, StreamRef
from siltstone.store.manifest import SlabId
from siltstone.store.outcome import Ticket
from siltstone.store.partition import Columns
from siltstone.store.rows import COLUMNS, SCHEMA, Batch, Row
from siltstone.store.scan import Status
from siltstone.store.settings import DatabaseSettings
from siltstone.topic.grammar import TopicFilter
from siltstone.tx.iterator import KeyIterator, KeyRead
from siltstone.tx.operations import COMMIT_SERIAL, LATEST, MONOTONIC, count_in
from siltstone.tx.owned_map import OWNED_MAP_SETTINGS, OwnedMap, OwnedMaps
from siltstone.tx.retry import Committed
from siltstone.tx.settings import KeyValueSettings
from siltstone.tx.ticket import CommitTicket
from siltstone.tx.transaction import Transaction

__all__ = [
    "COLUMNS",
    "COMMIT_SERIAL",
    "LATEST",
    "MONOTONIC",
    "OWNED_MAP_SETTINGS",
    "SCHEMA",
    "Batch",
    "ClosedError",
    "Columns",
    "CommitTicket",
    "Committed",
    "ConflictError",
    "Connection",
    "CorruptionError",
    "Database",
    "DatabaseSettings",
    "DiskError",
    "ExistsError",
    "FeedPosition",
    "FeedRead",
    "FeedReader",
    "FencedError",
    "Hole",
    "InvalidTopicError",
    "KeyIterator",
    "KeyRead",
    "KeyValueDatabase",
    "KeyValueSettings",
    "LockedError",
    "NotFoundError",
    "OutcomeUnknownError",
    "OverloadedError",
    "OwnedMap",
    "OwnedMaps",
    "PoisonedError",
    "PreconditionError",
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
    "Transaction",
    "Unmet",
    "UsageError",
    "connect",
    "count_in",
    "open",
]
