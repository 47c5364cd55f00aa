"""The public names of the package."""

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
from siltstone.flight.connection import Connection
from siltstone.manage.connection import (
    RunningDatabase,
    RunningKeyValue,
    RunningNode,
    RunningStore,
    connect,
)
from siltstone.manage.running_transaction import RunningTransaction
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.directory import open_store as open  # noqa: A004 - siltstone.open reads as it should
from siltstone.store.feed.position import Position
from siltstone.store.feed.reader import Change, FeedRead, FeedReader
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.log.info import Hole, SlabInfo, StreamInfo
from siltstone.store.log.iterator import Read, StreamIterator, StreamRef
from siltstone.store.log.read.pieces import COLUMNS, SCHEMA, Batch, Row
from siltstone.store.log.read.scan import ReadReport, Status
from siltstone.store.log.write.partition import Columns
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.iterator import KeyIterator, KeyRead
from siltstone.store.tx.operations import COMMIT_SERIAL, LATEST, MONOTONIC, count_in
from siltstone.store.tx.owned_map import OWNED_MAP_SETTINGS, OwnedMap, OwnedMaps
from siltstone.store.tx.retry import Committed
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Transaction
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import TopicFilter

__all__ = [
    "COLUMNS",
    "COMMIT_SERIAL",
    "LATEST",
    "MONOTONIC",
    "OWNED_MAP_SETTINGS",
    "SCHEMA",
    "Batch",
    "Change",
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
    "Position",
    "PreconditionError",
    "QuotaExceededError",
    "Read",
    "ReadReport",
    "RetryError",
    "Row",
    "RunningDatabase",
    "RunningKeyValue",
    "RunningNode",
    "RunningStore",
    "RunningTransaction",
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
