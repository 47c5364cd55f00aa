"""A key-value shard that all sites of a cluster share.

It connects the committer, the shared log, and the way to the leader.

The leader checks a transaction against what is applied, and publishes the changes of a whole group
as one record. Every site, the leader too, writes a record and the mark behind it in one write of
the engine. So the mark matches the data, also after a crash.

Invariants:
- a transaction is tried only by the leader of the term for which it was sent;
- a refusal because of data is given only after it is certain that this site still leads;
- a transaction that reads sees everything that was acknowledged when it began: what the leader had
  committed, and the record that it had under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from threading import Condition, Lock
from time import monotonic
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.errors import (
    ClosedError,
    ConflictError,
    OutcomeUnknownError,
    RetryError,
    SiltstoneError,
)
from siltstone.fs.api import FileSystem
from siltstone.store.kv.api import Changes, Engine
from siltstone.store.shard.replicated.copying import Offer
from siltstone.store.shard.replicated.kv.calls import (
    CallKind,
    CommittedCall,
    Point,
    decode_answer,
    decode_ask,
    decode_commit,
    encode_answer,
    encode_ask,
)
from siltstone.store.shard.replicated.kv.copying import Exports, check_copied, load
from siltstone.store.shard.replicated.kv.records import decode_record, encode_record
from siltstone.store.shard.replicated.kv.router import (
    Answer,
    CommitRouter,
    answer_of,
    unstored_of,
)
from siltstone.store.shard.replicated.kv.state import CopyStates
from siltstone.store.shard.replicated.log import Files, ReplicatedLog
from siltstone.store.shard.replicated.mark_file import Marked, decode_marked, encode_marked
from siltstone.store.shard.replicated.payloads import BadPayloadError
from siltstone.store.shard.replicated.port import NotLeaderError, Replication
from siltstone.store.tx import catalog
from siltstone.store.tx.commit.attempts import Admissions, Attempt, StoredAttempt
from siltstone.store.tx.commit.committer import KeyValueRecord, Room
from siltstone.store.tx.commit.shard import KeyValueShard
from siltstone.store.tx.operations import Operations
from siltstone.store.writer.commit_log import Record, RecordKind, Replica
from siltstone.store.writer.replication.messages import MessageKind, RecordChange
from siltstone.store.writer.ticket import Ticket

# The longest wait of a read until this site has everything that the leader had, unless its timeout
# is shorter.
READ_SECONDS: Final = 2.0
# The longest wait for the answer of a leader, before it or its successor is asked again.
_ASK_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.05
_KINDS: Final = frozenset(
    {MessageKind.KV, MessageKind.GENERATION, MessageKind.DROP, MessageKind.SETTINGS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """The place of a replicated key-value database: its directory, its name and identity in the
    cluster.
    """

    fs: FileSystem
    clock: Clock
    directory: PurePath
    # Its name in the cluster.
    name: str
    identity: bytes
    cluster: Replication


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The functions of the database that a shard calls after a change. On the thread of the
    shard.
    """

    # The rows of the shard are about to be replaced by a copy from another site.
    loading: Callable[[], None]
    # The rows were replaced.
    loaded: Callable[[], None]
    # Another site has committed a record that is not a group of transactions.
    followed: Callable[[KeyValueRecord], None]
    # Makes a change that only the leader may make.
    manage: Callable[[Mapping[str, Any]], None]
    replicas: Callable[[], int]
    pending_bytes_max: Callable[[], int]


class EngineMarks:
    """The mark of a shard in the engine that holds its data."""

    def __init__(self, engine: Engine, shard: int, path: PurePath) -> None:
        self._engine = engine
        self._shard = shard
        self._path = path

    def read(self) -> Marked | None:
        stored = catalog.read_mark(self._engine, self._shard)
        return None if stored is None else decode_marked(stored, self._path)

    def write(self, marked: Marked) -> None:
        changes = Changes()
        catalog.put_mark(changes, self._shard, encode_marked(marked))
        self._engine.write(changes)


class KeyValueReplica:
    """One shard at this site."""

    def __init__(
        self,
        place: ReplicaPlace,
        engine: Engine,
        queue: KeyValueShard,
        callbacks: Callbacks,
        room: Room | None,
    ) -> None:
        committer = queue.committer
        self._committer = committer
        self._queue = queue
        self._callbacks = callbacks
        self._cluster = place.cluster
        self._room = room
        self._place = place
        self._engine = engine
        self.number = committer.record.shard
        self.log = self._open_log()
        own = place.directory / str(self.number)
        self._exports = Exports(place.fs, own, engine, self.number, room)
        self._exports.clear()
        self._states = CopyStates(engine, self.number, self._at_index)
        self._installing = Lock()
        self._closed = False
        self._router = CommitRouter(
            self.log,
            place.cluster,
            sender=place.cluster.producer(),
            commit_here=self._commit_here,
            pending_bytes_max=callbacks.pending_bytes_max,
        )
        # The attempts of the transactions in the queue, by their identity.
        self._attempts: dict[int, Attempt] = {}
        self._batch: list[Operations] = []
        self._lock = Lock()
        self._admissions = Admissions()
        # Readers wait here until this site has stored more.
        self._stored = Condition()
        committer.is_replicated = True
        committer.log = self
        queue.share(_Leading(self), self._router)

    def _open_log(self) -> ReplicatedLog:
        place, engine = self._place, self._engine
        return ReplicatedLog(
            fs=place.fs,
            clock=place.clock,
            directory=place.directory,
            database=place.name,
            identity=place.identity,
            shard=self.number,
            next_serial=self._committer.stored_serial,
            cluster=place.cluster,
            marks=EngineMarks(engine, self.number, place.directory),
            payload=self._payload,
        )

    def begin(self) -> None:
        """Begin to read the shared log."""
        self.log.bind(
            Files(
                apply=self._apply,
                publish=lambda: None,
                # Each write of the engine is synced, with its mark.
                sync=lambda: None,
                resume=self._resume,
                next_serial=lambda: self._committer.stored_serial,
                order=self._order,
                take_call=self._take_call,
                waits=lambda: self._router.pending,
                changed=self._changed,
                offer=self._exports.offer,
                note_read=self._exports.note_read,
                state=self._states.fetch,
                replicas=self._callbacks.replicas,
                sealed_segments=list,
                check=self._check_copied,
                install=self._install,
            )
        )

    def close(self) -> None:
        """End; call it before the queue is closed."""
        with self._installing:
            self._closed = True
        self._exports.close()
        self._states.close()
        self.log.close()
        self._router.close()

    def check_leads(self) -> None:
        """Check that this site leads the shard. Raises: NotLeaderError."""
        if not self.log.leads:
            leader = self.log.view.leader or "none"
            raise NotLeaderError(f"another site leads shard {self.number}: {leader}")

    # Transactions that read

    def enter(self, timeout: float | None) -> int:
        """Wait until this site has everything that the leader had; return the leader's term.

        Raises: RetryError if that takes too long, or no leader is known.
        """
        seconds = READ_SECONDS if timeout is None else min(timeout, READ_SECONDS)
        until = monotonic() + seconds
        point = self._here()
        while True:
            if point is not None and self.log.view.term > point.term:
                # The record that its leader had under way may never count.
                point = None
            if point is not None and self._committer.stored_serial >= point.serial:
                return point.term
            left = until - monotonic()
            if left <= 0:
                raise RetryError(self._why_not(point))
            if point is None:
                point = self._here() or self._ask_leader(min(left, _ASK_SECONDS))
                continue
            with self._stored:
                if self._committer.stored_serial < point.serial:
                    self._stored.wait(min(left, _LOOK_SECONDS))

    def _here(self) -> Point | None:
        """Return the point that a new transaction must see, if this site leads.

        The record that is under way belongs to it: another site may have read it in the shared log
        and have acknowledged it.
        """
        before = self.log.view
        serial = self._committer.serial
        after = self.log.view
        if not before.leads or not after.leads or before.term != after.term:
            return None
        return Point(before.term, serial)

    def _ask_leader(self, seconds: float) -> Point | None:
        """Return the point of the leader; None if there is no answer in time."""
        leader = self.log.view.leader
        answered = _Answered()
        if leader and leader != self._cluster.site:
            call = encode_ask(CallKind.CONTEXT, {})
            self._cluster.send(self.log, leader, call, answered.take)
            point = answered.wait(seconds)
            if isinstance(point, Point):
                return point
        with self._stored:
            self._stored.wait(min(seconds, _LOOK_SECONDS))
        return None

    def _why_not(self, point: Point | None) -> str:
        if point is None:
            return (
                f"no site that leads shard {self.number} has answered, try again: "
                f"leader={self.log.view.leader or 'none'}"
            )
        return (
            f"this site is behind the leader of shard {self.number}, try again: "
            f"serial={self._committer.stored_serial} needed={point.serial}"
        )

    # What another site asks

    def _take_call(self, data: bytes, answer: Callable[[bytes], None]) -> None:
        def reply(found: Answer | Point | None) -> None:
            answer(encode_answer(found))

        try:
            kind, document, values = decode_ask(data)
            match kind:
                case CallKind.COMMIT:
                    self._commit_here(*decode_commit(document, values), reply)
                case CallKind.CONTEXT:
                    self.check_leads()
                    reply(self._here())
                case CallKind.MANAGE:
                    self._manage_here(document, reply)
        except SiltstoneError as exc:
            reply(exc)

    def manage(self, document: Mapping[str, Any], timeout: float) -> None:
        """Let the leader make a change by `Callbacks.manage`; return when it is made.

        Raises: its errors; RetryError if no leader is known; OutcomeUnknownError.
        """
        view, answered = self.log.view, _Answered()
        if view.leads:
            ticket = self._queue.post(partial(self._callbacks.manage, document))
            ticket.wait()
            return
        if view.leader in ("", self._cluster.site):
            raise NotLeaderError(f"no site leads shard {self.number}, try again")
        call = encode_ask(CallKind.MANAGE, document)
        self._cluster.send(self.log, view.leader, call, answered.take)
        found = answered.wait(timeout)
        if isinstance(found, Exception):
            raise found

    def _manage_here(self, document: Mapping[str, Any], reply: Callable[[Answer], None]) -> None:
        self.check_leads()
        ticket = self._queue.post(partial(self._callbacks.manage, document))
        ticket.on_done(lambda done: reply(done.error))

    def _commit_here(
        self, attempt: Attempt, operations: Operations, then: Callable[[Answer], None]
    ) -> None:
        with self._lock:
            is_ours = attempt.term == self._admissions.term
            is_new = self._admissions.admit(attempt)
            before = None if is_new else self._admissions.answered(attempt)
            if is_new:
                self._attempts[id(operations)] = attempt
        if not is_ours:
            then(NotLeaderError(f"this site does not lead shard {self.number} in that term"))
            return
        if not is_new:
            # A copy of a message. The first one gets the answer, or its answer was lost.
            if before is not None:
                then(answer_of(before))
            return
        ticket = Ticket(0, 1)
        try:
            self._queue.submit_here(operations, ticket)
        except SiltstoneError as exc:
            self._attempts.pop(id(operations), None)
            ticket.resolve(exc, None)

        def tell(done: Ticket) -> None:
            answer = done.error or CommittedCall(operations.serial, operations.duplicate)
            unstored = unstored_of(answer)
            if unstored is not None:
                with self._lock:
                    self._admissions.answer(attempt, unstored)
            then(answer)

        ticket.on_done(tell)

    # On the thread of the shard

    def commit(self, record: Record, replica: Replica, *, sync: bool) -> None:
        """Let the shared log store a record, then write it here. It is the log of the committer.

        Raises: NotLeaderError, OutcomeUnknownError; the errors of the engine.
        """
        self.log.commit(record, _Writing(self, replica), sync=sync)

    def try_batch(self, batch: list[Operations]) -> list[SiltstoneError | None]:
        """Commit the valid transactions of a batch, while this site leads."""
        term = self._admissions.term
        self._batch = [
            operations for operations in batch if self._attempts[id(operations)].term == term
        ]
        try:
            refusal = self.log.refusal()
            if refusal is not None:
                return [refusal] * len(batch)
            if len(self._batch) == len(batch):
                return self._try(batch)
            # They were sent while this site led an earlier term.
            past = NotLeaderError("the term for which a transaction was sent has ended")
            tried = iter(self._try(self._batch) if self._batch else [])
            own = {id(operations) for operations in self._batch}
            return [next(tried) if id(each) in own else past for each in batch]
        finally:
            self._batch = []
            with self._stored:
                self._stored.notify_all()
            with self._lock:
                for operations in batch:
                    del self._attempts[id(operations)]

    def _try(self, batch: list[Operations]) -> list[SiltstoneError | None]:
        committer = self._committer
        before = committer.stored_serial
        outcomes = committer.commit(batch)
        is_unknown = any(isinstance(each, OutcomeUnknownError) for each in outcomes)
        if committer.stored_serial != before or is_unknown:
            return outcomes
        if all(isinstance(each, ConflictError | NotLeaderError) for each in outcomes):
            return outcomes
        try:
            self.log.confirm()
        except (RetryError, OutcomeUnknownError) as exc:
            # Nothing was published, so nothing has happened.
            again = NotLeaderError(f"send the transaction again: {exc}")
            return [each if isinstance(each, ConflictError) else again for each in outcomes]
        return outcomes

    def _payload(self, record: Record) -> bytes:
        assert isinstance(record, KeyValueRecord)
        if record.kind != RecordKind.KV:
            return encode_record(record, [])
        after = self._committer.stored_serial
        stored = [
            StoredAttempt(attempt.sender, attempt.number, operations.serial)
            for operations in self._batch
            if operations.serial > after
            for attempt in [self._attempts[id(operations)]]
        ]
        return encode_record(record, stored)

    def write(self, record: Record, replica: Replica) -> None:
        """Write a record of this leader, which has counted, with its mark."""
        assert isinstance(record, KeyValueRecord)
        catalog.put_mark(record.changes, self.number, encode_marked(self.log.marked()))
        replica.store(record)
        replica.sync()

    def _apply(self, change: RecordChange) -> None:
        """Write a record of another leader, with its mark.

        Raises: BadPayloadError; StorageFullError, with nothing written; PoisonedError.
        """
        if change.kind not in _KINDS:
            raise BadPayloadError(f"a {change.kind.name} record is in the log of a map")
        record, stored = decode_record(RecordKind(change.kind), change.payload)
        if self._room is not None and (full := self._room(len(change.payload))) is not None:
            raise full
        try:
            catalog.put_mark(record.changes, self.number, encode_marked(self.log.marked()))
            self._committer.follow(record)
            if record.kind == RecordKind.KV:
                self._router.counted(stored)
            else:
                self._callbacks.followed(record)
        except RetryError:
            raise
        except SiltstoneError as exc:
            # A later mark would be behind a record that is not stored.
            raise self._committer.poison(exc) from exc
        with self._stored:
            self._stored.notify_all()

    def _order(self, act: Callable[[], None]) -> Ticket:
        """Let the thread of the shard do something, unless a write has failed before it."""

        def obey() -> None:
            try:
                self._committer.check()
                act()
            finally:
                if self._committer.is_poisoned():
                    self.log.fail()

        return self._queue.post(obey)

    def _resume(self) -> None:
        """Begin to lead, or continue after a record was stored late."""
        term = self.log.marked().position.term
        self._committer.lead(term)
        with self._lock:
            if self._admissions.term != term:
                self._admissions.lead(term)

    def _changed(self) -> None:
        self._router.look()
        with self._stored:
            self._stored.notify_all()

    # Comparing and copying

    def _at_index(self, index: int, then: Callable[[int | None], None]) -> None:
        # There is another log after the shard was copied.
        self.log.at_index(index, then)

    def _check_copied(self, offer: Offer) -> None:
        check_copied(self._place.fs, self.log.staging(), offer)

    def _install(self) -> None:
        """Replace the shard by the copy, and continue from there. Not on the thread of the shard.

        Raises: ClosedError, CorruptionError, DiskError; the next start finishes it then.
        """
        with self._installing:
            if self._closed:
                raise ClosedError("the database is closed")
            self.log.close()
            self._queue.order(self._load)
            self.log = self._open_log()
            self._router.follow(self.log)
            self._router.lose()
            self.begin()

    def _load(self) -> None:
        place = self._place
        self._callbacks.loading()
        load(place.fs, place.directory, self._engine, self.number, self._room)
        self._callbacks.loaded()


class _Leading:
    """Commits the transactions in the queue of the shard."""

    def __init__(self, replica: KeyValueReplica) -> None:
        self._replica = replica

    def commit(self, batch: list[Operations]) -> list[SiltstoneError | None]:
        return self._replica.try_batch(batch)


class _Writing:
    """The files of this site, for a record of this leader."""

    def __init__(self, shard: KeyValueReplica, replica: Replica) -> None:
        self._shard = shard
        self._replica = replica

    def store(self, record: Record) -> None:
        self._shard.write(record, self._replica)

    def sync(self) -> None:
        """Do nothing: the write of the engine was synced."""

    def publish(self) -> None:
        """Do nothing: everything that is written is visible."""


class _Answered:
    """The answer of another site, which a thread waits for."""

    def __init__(self) -> None:
        self._ticket = Ticket(0, 1)
        self._found: CommittedCall | Point | SiltstoneError | None = None

    def take(self, data: bytes | None) -> None:
        if data is None:
            self._found = OutcomeUnknownError("the leader of the shard has not answered")
        else:
            self._found = decode_answer(data)
        self._ticket.resolve(None, None)

    def wait(self, seconds: float) -> CommittedCall | Point | SiltstoneError | None:
        try:
            self._ticket.wait(seconds)
        except OutcomeUnknownError as exc:
            return exc
        return self._found
