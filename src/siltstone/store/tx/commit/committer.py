"""Validate transactions and store them in groups. Each shard has one committer, run by its thread.

Invariants:
- a transaction is refused before it changes anything, or all its changes are in the group;
- requirements are checked against the newest data, including the earlier transactions of the group;
  reads are checked against every write after the serial at which they were made;
- no change of a group is visible or acknowledged before the whole group is durable;
- serials and timestamps always rise; each is stored with the first group that uses it;
- a failed write poisons the shard: the transactions of that write may be stored or not, and no
  later transaction is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    PoisonedError,
    PreconditionError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    Unmet,
    UsageError,
)
from siltstone.settings.declare import encoding_of, with_encoding
from siltstone.store.kv.api import Changes, Engine
from siltstone.store.kv.keys import STATE_KEY, encode_state
from siltstone.store.kv.slab import KeyValueSlab
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.store.tx import catalog
from siltstone.store.tx.catalog import RememberedId, ShardState
from siltstone.store.tx.commit.changes import (
    CHANGES_FAMILY,
    ChangeList,
    ChangeLog,
    decode_changes,
    head_of,
)
from siltstone.store.tx.commit.conflicts import ReadRange, RecentWrites
from siltstone.store.tx.commit.pending import PendingGroup
from siltstone.store.tx.operations import (
    ANY_GENERATION,
    ANY_TERM,
    COUNT_MAX,
    MONOTONIC,
    SERIAL_BYTES,
    Addition,
    CommitSerial,
    Operations,
    Requirement,
    count_in,
)
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.commit_log import LOCAL_LOG, CommitLog, Record, RecordKind
from siltstone.topic.structure import Structure
from siltstone.units import SECOND_US

# Returns the error if this many bytes cannot be written now, None if they can. It is called before
# anything is written, because RocksDB does not recover after the disk was full once.
Room = Callable[[int], SiltstoneError | None]
# Receives the number of the first change of a group, and its changes, when readers can see them.
Told = Callable[[int, ChangeList], None]

_GROUP_BYTES: Final = 16 * 1024 * 1024
_FORGET_A_GROUP: Final = 256


class KeyValueRecord(Record):
    """Changes of the engine: of a group of transactions with the streams that it adds, or others.

    `family` is the one that a generation begins with, or that is dropped; else it is empty.
    """

    def __init__(self, kind: RecordKind, changes: Changes, edges: bytes, family: str) -> None:
        super().__init__(kind)
        self.changes = changes
        self.edges = edges
        self.family = family


class TransactionCommitter:
    """The writing half of a shard. Not thread-safe."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        settings: KeyValueSettings,
        record: SlabRecord,
        state: ShardState,
        *,
        database: str,
        room: Room | None = None,
    ) -> None:
        self._engine = engine
        self.log: CommitLog = LOCAL_LOG
        # Whether all sites of a cluster share the log: then a commit may be refused as a whole.
        self.is_replicated = False
        # The group to write next. RocksDB makes it durable and visible in one write.
        self._staged: KeyValueRecord | None = None
        self._database = database
        self._room = room
        # The error if the disk has no room for the current batch.
        self._is_full: SiltstoneError | None = None
        self._clock = clock
        self.settings = settings
        self.record = record
        self.term = state.term
        self.serial = state.serial
        self._timestamp_us = state.timestamp_us
        self._now_us = 0
        self._poisoned_by: Exception | None = None
        self._ids: dict[bytes, RememberedId] = {}
        # No remembered id is older than this.
        self._oldest_id_us = 0
        self.changes = ChangeLog(engine, record.shard, catalog.read_changes(engine, record.shard))
        # Replaced, not changed: other threads add to it.
        self.listeners: tuple[Told, ...] = ()
        self.slab, self._edges_number = catalog.open_slab(engine, record.id, settings)
        self._begin(self.slab)

    @property
    def poisoned_by(self) -> Exception | None:
        """The error that poisoned the shard; None if it is not poisoned."""
        return self._poisoned_by

    @property
    def stored_serial(self) -> int:
        """The serial of the last commit that is stored and visible. From any thread."""
        return self._stored_serial

    def is_poisoned(self) -> bool:
        """Return whether a write of the shard failed."""
        return self._poisoned_by is not None

    def check(self) -> None:
        """Raise PoisonedError if a write of the shard failed."""
        if self._poisoned_by is not None:
            raise self.poison(self._poisoned_by) from self._poisoned_by

    def commit(self, batch: Sequence[Operations]) -> list[SiltstoneError | None]:
        """Store the valid transactions in one or more groups; return the outcome of each.

        None means that the transaction is committed.

        Raises: PoisonedError.
        """
        self.check()
        self._now_us = self._clock.now_us()
        if self._room is not None:
            size_bytes = sum([operations.size_bytes for operations in batch])
            # Values are stored once more for feeds.
            self._is_full = self._room(size_bytes * 2 if self.settings.feed_bytes else size_bytes)
        outcomes: list[SiltstoneError | None] = []
        first = 0
        storing = False
        try:
            for operations in batch:
                if self._must_store_before(operations):
                    storing = True
                    self._store()
                    storing, first = False, len(outcomes)
                outcomes.append(self._accept(operations))
            storing = True
            self._store()
        except SiltstoneError as exc:
            return self._failed(outcomes, first, len(batch), storing=storing, cause=exc)
        return outcomes

    def turn_over(self) -> tuple[SlabRecord, SlabRecord]:
        """Seal the slab and begin the next; return the records of both. Raises: PoisonedError."""
        self.check()
        try:
            return self._turn_over()
        except SiltstoneError as exc:
            if self._is_withdrawn(exc):
                self.reload()
                raise
            raise self.poison(exc) from exc

    def drop(self, slab: SlabId) -> None:
        """Remove the record of a sealed slab; the caller drops its family when readers forgot it.

        Raises: the errors of the engine.
        """
        changes = Changes()
        catalog.remove_slab(changes, slab)
        self._commit(RecordKind.DROP, changes, catalog.family_of(slab))

    def put_settings(self, settings: KeyValueSettings) -> None:
        """Store the settings of the database. Raises: the errors of the engine."""
        changes = Changes()
        catalog.put_settings(changes, settings)
        self._commit(RecordKind.SETTINGS, changes, "")

    def keep_encoding(self) -> None:
        """Store the encoding of the slab, if an earlier version began it. The settings may change
        then. Raises: the errors of the engine.
        """
        if not self.record.encoding:
            changes = Changes()
            record = replace(self.record, encoding=encoding_of(self.settings))
            catalog.put_slab(changes, record)
            self._commit(RecordKind.SETTINGS, changes, "")
            self.record = record

    def _commit(self, kind: RecordKind, changes: Changes, family: str) -> None:
        """Make a change durable that is not a group of transactions."""
        try:
            self.log.commit(KeyValueRecord(kind, changes, b"", family), self, sync=True)
        except SiltstoneError as exc:
            if self.is_replicated and not self._is_withdrawn(exc):
                # The record may have counted. Only a restart reads it again.
                raise self.poison(exc) from exc
            raise
        finally:
            self._staged = None

    def find_id(self, digest: bytes) -> int | None:
        """Return the serial of the transaction that was committed with an id; None if none was."""
        self.check()
        return catalog.find_id(self._engine, self.record.shard, digest)

    def configure(self, settings: KeyValueSettings) -> None:
        """Apply these settings from now on; the slab keeps its encoding."""
        self.settings = settings
        self._recent.bound(settings.conflict_writes_max, settings.conflict_window)
        # The group is empty: the thread of the shard calls this between two groups.
        self._group = self._new_group()

    def _begin(self, slab: KeyValueSlab) -> None:
        """Begin to write to a slab, with an empty group."""
        self.slab = slab
        settings = with_encoding(self.settings, self.record.encoding)
        self._structure = Structure(list(settings.thresholds))
        self._structure.apply(slab.export())
        self._recent = RecentWrites(
            self.settings.conflict_writes_max,
            self.settings.conflict_window,
            self.serial,
            self._clock.monotonic(),
        )
        self._group = self._new_group()
        self._stored_serial = self.serial

    def _new_group(self) -> PendingGroup:
        self.changes.resume(self.serial)
        changes = ChangeList(self.record.generation) if self.settings.feed_bytes else None
        return PendingGroup(self.slab, self._structure, self._recent, self.serial, changes)

    def _must_store_before(self, operations: Operations) -> bool:
        """Return whether the group must be stored before this transaction is validated."""
        group = self._group
        if group.size_bytes >= _GROUP_BYTES:
            return True
        return operations.deletes_by_wildcard and group.is_large()

    def _accept(self, operations: Operations) -> SiltstoneError | None:
        """Add a transaction to the group unless it is a duplicate; return the error if refused."""
        if operations.id_digest:
            serial = self._serial_of(operations.id_digest)
            if serial is not None:
                operations.serial = serial
                operations.duplicate = True
                return None
        refusal = self._refusal(operations)
        if refusal is None:
            self._apply(operations)
        return refusal

    def _serial_of(self, digest: bytes) -> int | None:
        pending = self._ids.get(digest)
        if pending is not None:
            return pending.serial
        return catalog.find_id(self._engine, self.record.shard, digest)

    def _refusal(self, operations: Operations) -> SiltstoneError | None:
        if operations.term not in (self.term, ANY_TERM):
            return ConflictError(
                f"the shard got a new leader after the transaction began, try again: "
                f"term={operations.term} now={self.term}"
            )
        if operations.generation not in (self.record.generation, ANY_GENERATION):
            return self._sealed(operations)
        if operations.writes:
            refusal = self._over_quota()
            if refusal is not None:
                return refusal
        if operations.reads is not None:
            conflict = self._conflict(operations.reads, operations.read_serial)
            if conflict is not None:
                return conflict
        if operations.requirements is not None:
            unmet = self._unmet(operations.requirements)
            if unmet is not None:
                return unmet
        if operations.writes and self._is_full is not None:
            return self._is_full
        return self._uncountable(operations) if operations.adds else None

    def _uncountable(self, operations: Operations) -> SiltstoneError | None:
        """Return the error if an addition finds a value that is not a count, or overflows."""
        for (topic, _), value in operations.writes.items():
            if isinstance(value, Addition):
                try:
                    count = count_in(self._group.get(topic, 0)) + value.amount
                except UsageError as exc:
                    return exc
                if not -COUNT_MAX <= count <= COUNT_MAX:
                    return UsageError(f"a count must fit into 64 bits: topic={topic.decode()!r}")
        return None

    def _sealed(self, operations: Operations) -> SiltstoneError:
        if operations.latest:
            return ConflictError(
                f"the generation was sealed after the transaction began, try again: "
                f"generation={operations.generation} now={self.record.generation}"
            )
        return UsageError(
            f"the generation is sealed and cannot change: "
            f"generation={operations.generation} now={self.record.generation}"
        )

    def _over_quota(self) -> SiltstoneError | None:
        quota = self.settings.quota_bytes
        if quota is None:
            return None
        used = self._engine.size_bytes() + self._group.size_bytes
        if self.settings.feed_bytes:
            # The changes have a limit of their own, and deleting rows does not free them.
            used -= self._engine.size_bytes(CHANGES_FAMILY)
        if used <= quota:
            return None
        return QuotaExceededError(self._database, used_bytes=used, quota_bytes=quota)

    def _conflict(self, reads: list[ReadRange], serial: int) -> SiltstoneError | None:
        recent = self._recent
        if serial < recent.floor:
            return ConflictError(
                f"the transaction is too old to be checked for conflicts, try again: "
                f"serial={serial} remembered_from={recent.floor}"
            )
        for read in reads:
            topic = recent.conflicting(read, serial)
            if topic:
                return ConflictError(
                    f"another transaction changed rows that this one has read, try again: "
                    f"filter={str(read)!r} "
                    f"topic={topic.decode()!r} serial={serial}"
                )
        return None

    def _unmet(self, requirements: list[Requirement]) -> SiltstoneError | None:
        unmet: list[Unmet] = []
        fenced = False
        for requirement in requirements:
            found = self._group.get(requirement.topic, requirement.time_us)
            if requirement.present:
                met = found is not None and requirement.value in (None, found)
            else:
                met = found is None
            if not met:
                fenced = fenced or requirement.guard
                unmet.append(
                    Unmet(
                        topic=requirement.topic.decode(),
                        time_us=requirement.time_us,
                        present=requirement.present,
                        expected=requirement.value,
                        found=found,
                    )
                )
        if not unmet:
            return None
        return FencedError(tuple(unmet)) if fenced else PreconditionError(tuple(unmet))

    def _apply(self, operations: Operations) -> None:
        """Add the changes of a transaction to the group."""
        if operations.changes_nothing():
            operations.serial = self.serial
            return
        self.serial += 1
        serial = operations.serial = self.serial
        group = self._group
        self._recent.begin(serial)
        # Assign times before changes are recorded: no read covers the placeholder MONOTONIC.
        next_us = max(self._timestamp_us + 1, self._now_us)
        if operations.deletions is not None:
            for deletion in operations.deletions:
                until_us = next_us if deletion.until_us == MONOTONIC else deletion.until_us
                group.delete(deletion.filter, deletion.since_us, until_us)
        for (topic, time_us), value in operations.writes.items():
            if time_us < 0:
                time_us = self._timestamp_us = next_us  # noqa: PLW2901
                next_us += 1
            if isinstance(value, bytes):
                group.put(topic, time_us, value)
            elif isinstance(value, CommitSerial):
                group.put(topic, time_us, serial.to_bytes(SERIAL_BYTES, "big"))
            else:
                group.add(topic, value.amount, value.note)
        if operations.id_digest:
            digest = operations.id_digest
            self._ids[digest] = RememberedId(digest=digest, serial=serial, at_us=next_us)

    def _store(self) -> None:
        """Make the group durable and visible. Raises: the errors of the engine."""
        if self.serial != self._stored_serial:
            self.log.commit(self._prepare(), self, sync=True)
            self.publish()

    def _prepare(self) -> KeyValueRecord:
        """Return the changes of the group, and of the state, edges and ids stored with it."""
        group, edges = self._group, b""
        slab = self.slab
        changes = Changes()
        group.values[STATE_KEY] = encode_state(self.serial, self._timestamp_us)
        changes.values[slab.family] = group.values
        changes.ranges = [(slab.family, keys.start, keys.stop) for keys in group.ranges]
        if self._structure.has_pending():
            edges = self._structure.take_pending()
            catalog.put_edges(changes, self.record.id, self._edges_number, edges)
        self._put_ids(changes)
        catalog.put_state(changes, self.record.shard, self._state())
        self._put_changes(changes)
        return KeyValueRecord(RecordKind.KV, changes, edges, "")

    def _put_changes(self, changes: Changes) -> None:
        """Store the changes of the group for feeds, if they are kept."""
        group = self._group.changes
        if group is not None:
            state: bytes | None = self.changes.stage(
                changes, group, self.serial, self.settings.feed_bytes
            )
        else:
            state = self.changes.clear(changes)
        if state is not None:
            catalog.put_changes(changes, self.record.shard, state)

    # The replica, for the commit log.

    def store(self, record: Record) -> None:
        """Stage a group or another change; `sync` writes it."""
        assert isinstance(record, KeyValueRecord)
        self._staged = record

    def sync(self) -> None:
        """Write the staged changes, durably. Raises: the errors of the engine."""
        staged = self._staged
        assert staged is not None
        if staged.kind == RecordKind.KV:
            # Readers must know a stream before its rows become visible, or they would miss them. If
            # the write fails, readers know a stream without rows until the database is opened
            # again.
            self.slab.publish(staged.edges, self._group.places)
        elif staged.kind == RecordKind.GENERATION:
            self._engine.create_family(staged.family)
        self._engine.write(staged.changes)

    def publish(self) -> None:
        """Begin the next group after the written one."""
        if self._staged is not None and self._staged.edges:
            self._edges_number += 1
        self._staged = None
        self._group.release()
        self._ids.clear()
        self._stored_serial = self.serial
        self._recent.turn(self.serial, self._clock.monotonic())
        told = self._group.changes
        self.changes.publish()
        self._group = self._new_group()
        if told is not None and told.topics:
            for tell in self.listeners:
                tell(self.changes.end - len(told.topics), told)

    def _put_ids(self, changes: Changes) -> None:
        """Store the ids of the group, and remove some expired ids."""
        shard = self.record.shard
        for remembered in self._ids.values():
            catalog.put_id(changes, shard, remembered)
        now_us = self._now_us
        expired_us = now_us - int(self.settings.remember_ids * SECOND_US)
        if self._oldest_id_us >= expired_us:
            return
        oldest = catalog.oldest_ids(self._engine, shard, _FORGET_A_GROUP)
        for remembered in oldest:
            if remembered.at_us >= expired_us:
                self._oldest_id_us = remembered.at_us
                return
            catalog.remove_id(changes, shard, remembered)
        # Either no id is left that is older than now, or the next group checks more of them.
        self._oldest_id_us = now_us if len(oldest) < _FORGET_A_GROUP else 0

    def _state(self) -> ShardState:
        return ShardState(term=self.term, serial=self.serial, timestamp_us=self._timestamp_us)

    def _turn_over(self) -> tuple[SlabRecord, SlabRecord]:
        # The clock may have been set back since the generation began.
        since_us = max(self.record.since_us, self._timestamp_us + 1, self._clock.now_us())
        sealed = replace(
            self.record,
            state=SlabState.SEALED,
            until_us=since_us,
            until_serial=self.serial + 1,
        )
        record = SlabRecord(
            shard=self.record.shard,
            generation=self.record.generation + 1,
            state=SlabState.CURRENT,
            since_us=since_us,
            until_us=None,
            created_us=self._clock.now_us(),
            first_serial=self.serial + 1,
            encoding=encoding_of(self.settings),
        )
        changes = Changes()
        catalog.put_slab(changes, sealed)
        catalog.put_slab(changes, record)
        inherited = self._structure.inherit(list(self.settings.thresholds)).export()
        catalog.put_edges(changes, record.id, 0, inherited)
        self._timestamp_us = since_us
        # A read of the new family must find a serial from the start.
        family = catalog.family_of(record.id)
        changes.put(family, STATE_KEY, encode_state(self.serial, since_us))
        catalog.put_state(changes, record.shard, self._state())
        self._commit(RecordKind.GENERATION, changes, family)
        slab, self._edges_number = catalog.open_slab(self._engine, record.id, self.settings)
        self.record = record
        self._begin(slab)
        return sealed, record

    def _failed(
        self,
        outcomes: list[SiltstoneError | None],
        first: int,
        count: int,
        *,
        storing: bool,
        cause: SiltstoneError,
    ) -> list[SiltstoneError | None]:
        """Return the outcomes after a group failed. The groups before it were stored."""
        if storing and self._is_withdrawn(cause):
            self.reload()
            # Every other outcome was found in the group, which may not be stored.
            waiting = count - len(outcomes)
            known = [cause if each is None else _again(each) for each in outcomes[first:]]
            return outcomes[:first] + known + [_refused(cause)] * waiting
        poison = self.poison(cause)
        self._group.release()
        for number in range(first, len(outcomes)):
            outcome = outcomes[number]
            if outcome is None and storing:
                outcomes[number] = _unknown(cause)
            elif outcome is None or isinstance(outcome, PreconditionError):
                # The transaction was checked against the group, which is not stored.
                outcomes[number] = poison
        return outcomes + [poison] * (count - len(outcomes))

    def _is_withdrawn(self, cause: SiltstoneError) -> bool:
        """Return whether the shared log has not taken a record: no file of this site is broken."""
        return self.is_replicated and isinstance(cause, RetryError | OutcomeUnknownError)

    # A shard that all sites of a cluster share.

    def lead(self, term: int) -> None:
        """Begin to commit transactions in a term, on top of the stored data."""
        self.term = term
        self.reload()

    def reload(self) -> None:
        """Forget everything that is not stored, and continue from the stored data."""
        self._group.release()
        self._staged = None
        self._ids.clear()
        shard = self.record.shard
        state = catalog.read_state(self._engine, shard)
        self.serial, self._timestamp_us = state.serial, state.timestamp_us
        self.changes = ChangeLog(self._engine, shard, catalog.read_changes(self._engine, shard))
        self._edges_number = catalog.count_edges(self._engine, self.record.id)
        self._begin(self.slab)

    def follow(self, record: KeyValueRecord) -> None:
        """Store a record that another site has committed, and show it to readers.

        Raises: the errors of the engine.
        """
        changes = record.changes
        if record.kind == RecordKind.KV:
            self.slab.publish(record.edges, {})
        elif record.kind == RecordKind.GENERATION and record.family not in self._engine.families():
            self._engine.create_family(record.family)
        self._engine.write(changes)
        if record.kind != RecordKind.KV:
            return
        state = catalog.read_state(self._engine, self.record.shard)
        self.serial = self._stored_serial = state.serial
        self._timestamp_us = state.timestamp_us
        self._tell_followers(changes)

    def _tell_followers(self, changes: Changes) -> None:
        """Let feeds know the changes of a record."""
        shard = self.record.shard
        state = catalog.read_changes(self._engine, shard)
        self.changes = ChangeLog(self._engine, shard, state)
        self.changes.resume(self.serial)
        for key, stored in changes.values.get(CHANGES_FAMILY, {}).items():
            if stored is not None:
                first, told = head_of(key, stored).first, decode_changes(stored)
                for tell in self.listeners:
                    tell(first, told)

    def begin_slab(self, record: SlabRecord) -> KeyValueSlab:
        """Open the slab of a generation that another site began; return it."""
        slab, self._edges_number = catalog.open_slab(self._engine, record.id, self.settings)
        self.record = record
        self._group.release()
        self._begin(slab)
        return slab

    def poison(self, cause: Exception) -> PoisonedError:
        """Refuse all writes from now on because of an error; return the error for callers."""
        if self._poisoned_by is None:
            self._poisoned_by = cause
        return PoisonedError(
            f"a write failed, close the database and open it again: "
            f"slab={self.record.id} cause={self._poisoned_by}"
        )


def _again(found: SiltstoneError) -> SiltstoneError:
    """Return a refusal that does not mention data that was not stored."""
    if isinstance(found, ConflictError):
        return found
    return RetryError("the shard got a new leader before the commit, try again")


def _refused(cause: SiltstoneError) -> SiltstoneError:
    """Return the error of a transaction that was not tried."""
    if isinstance(cause, OutcomeUnknownError):
        return RetryError(f"the commit was not tried: {cause}")
    return cause


def _unknown(cause: SiltstoneError) -> OutcomeUnknownError:
    error = OutcomeUnknownError(
        f"the write of the commit failed, and it may be stored: cause={cause}"
    )
    error.__cause__ = cause
    return error
