"""The commit log of a replicated shard: it connects the pure core with the shared log and files.

The thread of the shard owns the core. Other threads put events into the inbox: messages of the
shared log, its bounds, the request to lead, and the passing of time. The thread of the shard takes
them between two commits, or while `commit` waits until its record has counted.

Invariants:
- the actions of one event are executed, in order, before the next event is taken;
- changes that counted are stored in the order of the log. If that fails for lack of space, nothing
  further is read until it succeeds;
- a record is acknowledged only after it counted in this site's own reading of the log and was
  written to the segments. The sync of the segments comes later: the shared log has synced it;
- the mark is replaced after the segments were synced.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from threading import Condition, get_ident
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import (
    CorruptionError,
    OutcomeUnknownError,
    OverloadedError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.fs.api import FileSystem
from siltstone.logs import log
from siltstone.store.log.write.committer import FrameRecord
from siltstone.store.log.write.frame_builder import Call, has_sound_topics
from siltstone.store.shard.replicated.copying import CopyStaging, Offer
from siltstone.store.shard.replicated.damage import read_damaged, write_damaged
from siltstone.store.shard.replicated.mark_file import Marked, Marks
from siltstone.store.shard.replicated.payloads import BadPayloadError, payload_of
from siltstone.store.shard.replicated.port import (
    ClosedProducerError,
    LogView,
    NotLeaderError,
    OutOfOrderError,
    Replication,
)
from siltstone.store.writer.commit_log import Record, Replica
from siltstone.store.writer.replication.actions import (
    Action,
    Confirmed,
    Copy,
    FetchMessage,
    Lead,
    PublishMessage,
    Refused,
    StepDown,
    StopReading,
    StoreMessage,
    Unknown,
)
from siltstone.store.writer.replication.follower import (
    Follower,
    FollowerStatus,
    LogBounds,
    PeerProgress,
)
from siltstone.store.writer.replication.health import OutboxTimer
from siltstone.store.writer.replication.leader import CallAdmission
from siltstone.store.writer.replication.messages import (
    WHOLE_KINDS,
    LogIdentity,
    MessageKind,
    RecordChange,
)
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition
from siltstone.store.writer.replication.shard import READING_STATUSES, ReplicatedShard
from siltstone.store.writer.replication.sites.scrubbing import CopyState
from siltstone.store.writer.ticket import Outcome
from siltstone.units import SECOND_US

_LOG: Final = logging.getLogger("siltstone.store")
AGAIN_SECONDS: Final = 0.5
# The longest wait of an act for an index if no more is committed.
_INDEX_SECONDS: Final = 2.0
# The bytes of unread messages above which the tail is not read further.
INBOX_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Message:
    """The next message of the tail."""

    sequence: int
    data: bytes


class _Claim:
    """This site asks for the lead."""


class _Tick:
    """Some time has passed."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """Another site wants to copy the shard. It gets an offer, or None if there is none now."""

    then: Callable[[Offer | None], None]


@dataclass(frozen=True, slots=True)
class _At:
    """A function to call at an index. It gets the index that the shard has then; None if the site
    has not stored everything that it has read.
    """

    index: int
    until: float
    then: Callable[[int | None], None]


@dataclass(frozen=True, slots=True)
class _Retire:
    """Processes of sites have ended: the first bytes of their producers, and the last number of
    each; None for all known numbers.
    """

    ended: tuple[tuple[bytes, int | None], ...]


@dataclass(frozen=True, slots=True)
class _Question:
    """A question: up to which index has the log counted? The answer is None if this site does not
    lead.
    """

    then: Callable[[int | None], None]


_Event = _Retire | _Message | LogBounds | PeerProgress | _Claim | _Tick | _Ask | _At | _Question


class Files:
    """The files of a replicated shard, as its commit log uses them. On the thread of the shard."""

    def __init__(
        self,
        *,
        apply: Callable[[RecordChange], None],
        publish: Callable[[], None],
        sync: Callable[[], None],
        resume: Callable[[], None],
        next_serial: Callable[[], int],
        order: Callable[[Callable[[], None]], object],
        take_call: Callable[[bytes, Callable[[bytes], None]], None],
        waits: Callable[[], int],
        changed: Callable[[], None],
        offer: Callable[[Marked, Callable[[Offer | None], None]], None],
        replicas: Callable[[], int],
        sealed_segments: Callable[[], list[str]],
        check: Callable[[Offer], None],
        install: Callable[[], None],
        note_read: Callable[[str], None] | None = None,
        state: Callable[[int, int], CopyState | None] | None = None,
    ) -> None:
        self.apply = apply
        self.publish = publish
        self.sync = sync
        self.resume = resume
        self.next_serial = next_serial
        self.order = order
        # Takes the bytes of a call of another site; the function gets the bytes of the answer.
        self.take_call = take_call
        # The number of calls of this site that have no outcome yet.
        self.waits = waits
        # Called when another leader, or none, is known.
        self.changed = changed
        # Passes an offer to a function, perhaps later; called just after the mark was written.
        self.offer = offer
        # The number of replicas in the settings of the database.
        self.replicas = replicas
        # The sealed segments of this site, as GENERATION/SERIAL.seg.
        self.sealed_segments = sealed_segments
        # Checks the files that were copied, and syncs them. From any thread.
        self.check = check
        # Replaces the files by those that were copied, and opens the shard again. From any thread.
        self.install = install
        # Called when another site reads an offered file. From any thread.
        self.note_read = note_read
        # Returns the state of a key-value shard at an index; None means ask again. From any thread.
        self.state = state


class ReplicatedLog:
    """The commit log of one replicated shard."""

    def __init__(
        self,
        *,
        fs: FileSystem,
        clock: Clock,
        directory: PurePath,
        database: str,
        identity: bytes,
        shard: int,
        next_serial: int,
        cluster: Replication,
        marks: Marks,
        payload: Callable[[Record], bytes] = payload_of,
    ) -> None:
        """Continue behind the mark. `payload` returns what all sites need to store a record.

        Raises: CorruptionError if the mark belongs to another shard; UsageError if it belongs to
        another epoch.
        """
        self.database = database
        self.shard = shard
        self.identity = LogIdentity(database=identity, shard=shard, epoch=cluster.epoch)
        self._fs = fs
        self._clock = clock
        self._directory = directory
        self._cluster = cluster
        self._marks = marks
        self._payload = payload
        marked = marks.read()
        if marked is None:
            marked = Marked(
                position=LogPosition(identity=self.identity), producers=Producers(), next_serial=0
            )
        if marked.position.identity != self.identity:
            if replace(marked.position.identity, epoch=cluster.epoch) == self.identity:
                raise UsageError(
                    f"{database} at this site belongs to another epoch of the cluster: "
                    f"found={marked.position.identity.epoch} expected={cluster.epoch}; see "
                    f"'siltstone cluster refound --help'"
                )
            raise CorruptionError("the mark belongs to another shard", path=directory)
        if marked.next_serial > next_serial:
            # Continue as a new site, which reads the log from the beginning, or copies from another
            # site. Rows that it still has are recognised.
            log(
                _LOG,
                logging.ERROR,
                "shard_lost_rows",
                database=database,
                shard=shard,
                rows=marked.next_serial - next_serial,
            )
            marked = Marked(
                position=LogPosition(identity=self.identity), producers=Producers(), next_serial=0
            )
        self._marked = marked.position
        follower = Follower(marked.position, marked.producers)
        # `commit` waits for each record, so there is never more than one under way.
        self._core = ReplicatedShard(cluster.site, cluster.boot(), follower)
        # Decides when records that have not counted are published again.
        self._outbox = OutboxTimer()
        self._files: Files | None = None
        self._condition = Condition()
        self._inbox: deque[_Event] = deque()
        self._inbox_bytes = 0
        self._ordered = False
        self._closing = False
        self._has_failed = False
        # The change that counted and could not be stored yet.
        self._unstored: RecordChange | None = None
        # The mark could not be replaced, because the disk is full.
        self._is_unmarked = False
        # Each lack of space is logged once.
        self._is_told = False
        # The functions that wait for an index.
        self._waiting: list[_At] = []
        self._committing: tuple[Record, Replica] | None = None
        self._stored = False
        self._deposed = False
        self._lost = False
        self._requests = 0
        # The last question that was answered, see `confirm`.
        self._confirmed = 0
        self._owner = 0
        self._log_is_full = False
        # The reason why rows wait: acknowledged rows could be lost. "" if they do not wait.
        self._unsafe = ""
        # The time of the clock until which calls wait because of a backup.
        self._rests_until = 0.0
        # Questions to ask, and those under way by their request.
        self._questions: list[Callable[[int | None], None]] = []
        self._asked: dict[int, Callable[[int | None], None]] = {}
        self.view = self._look()

    # From any thread.

    @property
    def leads(self) -> bool:
        """Whether this site leads the shard, as far as it has read the log."""
        return self.view.leads

    @property
    def is_full(self) -> bool:
        """Whether no more messages should be delivered for now."""
        return self._inbox_bytes >= INBOX_BYTES_MAX

    def bind(self, files: Files) -> None:
        """Begin to accept events."""
        self._files = files
        self._cluster.attach(self)

    def deliver(self, sequence: int, data: bytes) -> None:
        """Take the next message of the tail."""
        self._put(_Message(sequence, data), len(data))

    def found(self, bounds: LogBounds) -> None:
        """Take the bounds of the log, when its tail was opened or looked at."""
        self._put(bounds)

    def heard(self, progress: PeerProgress) -> None:
        """Compare the history with that of another site."""
        self._put(progress)

    def claim(self) -> None:
        """Ask to lead."""
        self._put(_Claim())

    def retire(self, ended: Iterable[tuple[bytes, int | None]]) -> None:
        """If this site leads, forget the producers of processes that have ended."""
        self._put(_Retire(tuple(ended)))

    def tick(self) -> None:
        """Store the change that waits, write the mark if it is due, and send calls again."""
        self._put(_Tick())

    def nudge(self) -> None:
        """Send the calls again that have no outcome and are not under way."""
        if self._files is not None:
            self._files.changed()

    @property
    def waits(self) -> int:
        """The number of calls of this site that have no outcome yet."""
        return 0 if self._files is None else self._files.waits()

    def take_call(self, data: bytes, answer: Callable[[bytes], None]) -> None:
        """Take a call of another site; `answer` gets the bytes for that site, from any thread."""
        assert self._files is not None
        self._files.take_call(data, answer)

    def ask_for_offer(self, then: Callable[[Offer | None], None]) -> None:
        """Call `then` with an offer that another site may copy, on the thread of the shard."""
        self._put(_Ask(then))

    def at_index(self, index: int, then: Callable[[int | None], None]) -> None:
        """Call `then` on the thread of the shard when this index was stored, or later; after some
        seconds also before it.
        """
        self._put(_At(index, self._clock.monotonic() + _INDEX_SECONDS, then))

    @property
    def is_map(self) -> bool:
        """Whether it is a shard of a key-value database."""
        return self._files is not None and self._files.state is not None

    def state(self, index: int, bytes_per_second: int) -> CopyState | None:
        """Return the state of a key-value shard at an index; None while it is being computed: ask
        again. Raises: UsageError.
        """
        if self._files is None or self._files.state is None:
            raise UsageError(f"{self.database} is not a key-value database")
        return self._files.state(index, bytes_per_second)

    def note_read(self, path: str) -> None:
        """Note that another site reads an offered file. From any thread."""
        if self._files is not None and self._files.note_read is not None:
            self._files.note_read(path)

    @property
    def place(self) -> PurePath:
        """The directory with the files of the shard."""
        return self._directory / str(self.shard)

    @property
    def fs(self) -> FileSystem:
        """The file system of the shard."""
        return self._fs

    @property
    def replicas(self) -> int:
        """The number of replicas in the settings of the database."""
        assert self._files is not None
        return self._files.replicas()

    def staging(self) -> CopyStaging:
        """Return the directory where a copy is collected."""
        return CopyStaging(self._fs, self._directory, self.shard)

    def limit_rows(self, *, is_full: bool) -> None:
        """Set whether the shared log is too full for rows. Calls wait meanwhile."""
        self._log_is_full = is_full

    def hold_rows(self, reason: str) -> None:
        """Let calls wait for this reason: the shared log could lose acknowledged rows. "" ends the
        wait.
        """
        self._unsafe = reason

    def rest(self, seconds: float) -> None:
        """Let calls wait for this long from now on; 0 ends the wait. Records without calls, such as
        drops, do not wait.
        """
        self._rests_until = self._clock.monotonic() + seconds if seconds else 0.0

    def ask_what_counted(self, then: Callable[[int | None], None]) -> None:
        """Call `then` with an index, on the thread of the shard: everything that any leader has
        acknowledged before this call has an index up to it. None if this site does not lead.

        The answer waits for the calls that are being stored. It may never come if the shared log
        accepts nothing, or the shard is closed.
        """
        self._put(_Question(then))

    @property
    def next_serial(self) -> int:
        """The serial of the next row that this site stores."""
        assert self._files is not None
        return self._files.next_serial()

    def sealed_segments(self) -> list[str]:
        """Return the sealed segments of this site, as GENERATION/SERIAL.seg."""
        assert self._files is not None
        return self._files.sealed_segments()

    def damaged(self) -> frozenset[str]:
        """Return the segments that are known to be damaged. Raises: CorruptionError."""
        return read_damaged(self._fs, self._directory, self.shard)

    def remember_damaged(self, paths: Collection[str]) -> None:
        """Remember durably which segments must be repaired."""
        write_damaged(self._fs, self._directory, self.shard, paths)

    def install(self, offer: Offer, *, again: bool = False) -> None:
        """Check the copy, and continue from there. Not on the thread of the shard. This log is
        closed afterwards. With `again`, this site is not behind, and repairs its files.

        Raises: CorruptionError if the copy is damaged or of another log; RetryError if it is older
        than what this site has, or if this site leads.
        """
        assert self._files is not None
        self._check_offer(offer, again=again)
        self._files.check(offer)
        self.staging().commit(offer)
        self._files.install()
        log(
            _LOG,
            logging.INFO,
            "shard_copied",
            sequence=offer.marked.position.sequence,
            rows=offer.marked.next_serial,
            **self._facts,
        )

    def _check_offer(self, offer: Offer, *, again: bool) -> None:
        theirs, progress = offer.marked.position, self.view.progress
        if again and theirs.identity == self.identity:
            if self.view.leads or theirs.index < progress.index:
                raise RetryError("this site leads, or has read more than the source")
            return
        if theirs.identity != self.identity or theirs.sequence <= progress.sequence:
            raise CorruptionError(
                f"the copied state is older than that of this site, or of another shard: "
                f"sequence={theirs.sequence} own_sequence={progress.sequence}",
                path=self._directory,
            )

    def close(self) -> None:
        """Close the log. A commit under way gets no outcome."""
        self._cluster.detach(self)
        with self._condition:
            self._closing = True
            self._condition.notify_all()

    def _put(self, event: _Event, size: int = 0) -> None:
        with self._condition:
            if self._closing:
                return
            self._inbox.append(event)
            self._inbox_bytes += size
            self._condition.notify_all()
            if self._ordered or self._files is None:
                return
            self._ordered = True
            order = self._files.order
        try:
            order(self._drain)
        except SiltstoneError:
            # The shard is closed or poisoned: it reads nothing more.
            self.fail()

    def fail(self) -> None:
        """Stop reading and leading: a write of the shard failed, or the shard is closed."""
        with self._condition:
            self._closing = self._has_failed = True
            self._condition.notify_all()
        self.view = replace(self.view, leads=False, is_full=True)

    # On the thread of the shard.

    def commit(self, record: Record, replica: Replica, *, sync: bool) -> None:  # noqa: ARG002
        """Publish a record until it has counted, then store it. The shared log has synced it.

        Raises: NotLeaderError, with nothing stored; OutcomeUnknownError.
        """
        core = self._core
        if get_ident() != self._owner:
            # The core belongs to the thread of the shard.
            raise UsageError("a replicated database does not support this operation")
        if core.leader is None or self._unstored is not None:
            raise NotLeaderError(f"this site does not lead shard {self.shard}")
        self._stored = self._deposed = self._lost = False
        self._wait_for_room(core)
        if isinstance(record, FrameRecord):
            # The shared log syncs the rows, so readers see none that could be lost.
            record.wants_sync = True
            self._admit(record)
        self._committing = (record, replica)
        try:
            self._do(core.freeze(MessageKind(record.kind), self._payload(record)))
            while not self._stored:
                self._wait_for_event(core)
                if self._lost:
                    raise OutcomeUnknownError(f"shard {self.shard} stopped: {self.view.reason}")
                if self._deposed:
                    raise NotLeaderError("another site leads the shard now; send the call again")
        finally:
            self._committing = None
            self._show()

    def confirm(self) -> None:
        """Wait until it is certain that this site led the shard after the call began.

        Raises: NotLeaderError, OutcomeUnknownError.
        """
        core = self._core
        if core.leader is None or self._unstored is not None:
            raise NotLeaderError(f"this site does not lead shard {self.shard}")
        self._deposed = self._lost = False
        self._requests += 1
        request = self._requests
        self._do(core.ask(request))
        while self._confirmed != request:
            self._wait_for_event(core)
            if self._lost:
                raise OutcomeUnknownError(f"shard {self.shard} stopped: {self.view.reason}")
            if self._deposed:
                raise NotLeaderError("another site leads the shard now; send the call again")

    def marked(self) -> Marked:
        """Return the mark from which a restart continues once everything that counted is stored.

        While a change is being stored, this is the mark just behind it.
        """
        return self._now_marked(self._core.position.mark())

    def refusal(self) -> SiltstoneError | None:
        """Return the error if nothing can be added to the shard now; None if it can."""
        if self._core.leader is None or self._unstored is not None:
            return NotLeaderError(f"this site does not lead shard {self.shard}")
        if self._clock.monotonic() < self._rests_until:
            return NotLeaderError(
                f"shard {self.shard} takes no calls at this moment, because a backup begins: send "
                f"the call again"
            )
        if self._unsafe:
            return OverloadedError(f"rows wait: {self._unsafe}")
        if self._log_is_full:
            return OverloadedError(
                "the shared log is nearly full: a site is behind, or the log is not trimmed"
            )
        return None

    def _wait_for_room(self, core: ReplicatedShard) -> None:
        """Wait until the records that this leader published on its own account have counted."""
        while core.leader is not None and core.leader.under_way():
            self._wait_for_event(core)
        if core.leader is None:
            raise NotLeaderError(f"this site does not lead shard {self.shard}")

    def _wait_for_event(self, core: ReplicatedShard) -> None:
        event = self._next(AGAIN_SECONDS)
        if event is not None:
            self._take(event)
        elif self._closing:
            raise OutcomeUnknownError("the store was closed before the shared log had the record")
        # Other events come often, so their absence says nothing about the record.
        self._publish_again(core)

    def _publish_again(self, core: ReplicatedShard) -> None:
        """Publish again the records that have not counted for a while."""
        now_us = int(self._clock.monotonic() * SECOND_US)
        if core.leader is not None and self._outbox.watch(core.leader.oldest(), now_us):
            self._do(core.publish_again())
            self._show()

    def _admit(self, record: FrameRecord) -> None:
        for claim in record.claims:
            self._requests += 1
            admission, _ = self._core.admit(self._requests, claim)
            if admission is not CallAdmission.TAKEN:
                # The calls were examined before. A record that counted since has closed a producer.
                self._do(self._core.withdraw())
                raise NotLeaderError("a producer was closed meanwhile; send the calls again")

    def examine(self, calls: Sequence[Call]) -> list[Outcome | Exception | None]:
        """Return for each call its outcome if it need not be stored: it repeats another one, or it
        must not be stored now. None means that it is to be stored.
        """
        refusal = self.refusal()
        if refusal is not None:
            return [refusal] * len(calls)
        producers = self._core.follower.producers
        ahead: dict[bytes, int] = {}
        found: list[Outcome | Exception | None] = []
        for call in calls:
            claim = call.claim
            if claim is None:
                found.append(None)
                continue
            if not has_sound_topics(call):
                # The frame builder refuses it, so no other call may name it as the one before.
                found.append(None)
                continue
            stored = producers.last(claim.producer)
            last = ahead.get(claim.producer, stored)
            if claim.number <= stored:
                found.append(_REPEATED)
            elif producers.is_closed(claim.producer):
                found.append(ClosedProducerError("the sender of the call was closed"))
            elif claim.previous != last:
                found.append(OutOfOrderError(f"an earlier call is not stored: last={last}"))
            else:
                ahead[claim.producer] = claim.number
                found.append(None)
        return found

    def _drain(self) -> None:
        """Take all events of the inbox."""
        self._owner = get_ident()
        with self._condition:
            self._ordered = False
        while self._unstored is None or self._store_again():
            event = self._next(0)
            if event is None:
                break
            self._take(event)
        assert self._files is not None
        self._files.publish()
        self._ask_log()
        self._show()

    def _ask_log(self) -> None:
        """Ask the log how far it has counted, for all waiting questions. No call is being
        stored.
        """
        questions, self._questions = self._questions, []
        for then in questions:
            if self._core.leader is None or self._unstored is not None:
                then(None)
                continue
            self._requests += 1
            self._asked[self._requests] = then
            self._do(self._core.ask(self._requests))

    def _answer(self, action: Confirmed | Refused | Unknown) -> None:
        """Answer a question of `ask_what_counted`, or note the one of `confirm`."""
        then = self._asked.pop(action.request, None)
        if then is not None:
            then(action.index if isinstance(action, Confirmed) else None)
        elif isinstance(action, Confirmed):
            self._confirmed = action.request

    def _show(self) -> None:
        before, self.view = self.view, self._look()
        now = self.view
        is_new = (before.term, before.leads) != (now.term, now.leads)
        if self._files is not None and (is_new or self._files.waits()):
            self._files.changed()

    def _store_again(self) -> bool:
        """Try again to store a change; return whether it is stored now."""
        assert self._unstored is not None
        change, self._unstored = self._unstored, None
        if not self._apply(change):
            return False
        self._is_told = False
        assert self._files is not None
        self._files.publish()
        self._files.resume()
        return True

    def _next(self, seconds: float) -> _Event | None:
        with self._condition:
            if seconds and not self._inbox and not self._closing:
                self._condition.wait(seconds)
            if not self._inbox:
                return None
            event = self._inbox.popleft()
            if isinstance(event, _Message):
                self._inbox_bytes -= len(event.data)
            return event

    def _take(self, event: _Event) -> None:
        core = self._core
        match event:
            case _Message():
                self._do(core.read(event.sequence, event.data))
            case LogBounds():
                self._do(core.attach(event))
            case PeerProgress():
                self._do(core.compare(event))
            case _Claim():
                self._do(core.claim())
            case _Tick():
                self._mark()
                # A RETIRE is under way without a commit that waits for it.
                self._publish_again(core)
            case _Ask():
                self._offer(event.then)
            case _Question():
                self._questions.append(event.then)
            case _At():
                self._waiting.append(event)
            case _Retire():
                producers = core.follower.producers
                for site, known in event.ended:
                    number = producers.newest(site) if known is None else known
                    self._do(core.retire(site, number))
        if self._waiting:
            self._act_at_index()

    def _act_at_index(self) -> None:
        """Call the functions that wait for this index, or have waited long enough."""
        index, now = self._core.position.index, self._clock.monotonic()
        due = [each for each in self._waiting if each.index <= index or each.until <= now]
        self._waiting = [each for each in self._waiting if each not in due]
        is_stored = self._unstored is None and self._core.follower.status in READING_STATUSES
        for each in due:
            each.then(index if is_stored else None)

    def _offer(self, then: Callable[[Offer | None], None]) -> None:
        """Make an offer that another site may copy; None if the mark cannot be written now."""
        self._mark()
        position = self._core.position.mark()
        if (
            self._files is None
            or self._marked != position
            or self._core.follower.status not in READING_STATUSES
        ):
            then(None)
            return
        try:
            self._files.offer(self._now_marked(position), then)
        except SiltstoneError as exc:
            log(_LOG, logging.WARNING, "offer_failed", error=str(exc), **self._facts)
            then(None)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case PublishMessage():
                    self._cluster.publish(self, action.data)
                case StoreMessage():
                    self._store(action)
                case Lead():
                    self._lead(action)
                case StepDown():
                    self._deposed = True
                    log(_LOG, logging.INFO, "shard_stepped_down", term=action.term, **self._facts)
                case FetchMessage():
                    self._cluster.fetch(self, action.sequence, action.reason)
                case Copy():
                    self._cluster.copy(self, action.first)
                case StopReading():
                    self._lost = True
                    log(
                        _LOG, logging.CRITICAL, "shard_stopped", reason=action.reason, **self._facts
                    )
                case Confirmed() | Refused() | Unknown():
                    self._answer(action)
                case _:
                    # Answers: `commit` returns when its record was stored.
                    pass

    def _store(self, action: StoreMessage) -> None:
        change = action.change
        if change is None or change.kind in WHOLE_KINDS:
            return
        if self._committing is None or self._core.leader is None:
            self._apply(change)
            return
        record, replica = self._committing
        try:
            replica.store(record)
        except RetryError as exc:
            # It has counted, so it must be stored; it is like a record of another leader now.
            self._unstored = change
            raise OutcomeUnknownError(
                f"the shared log has the record, but this site has not stored it: {exc}"
            ) from exc
        self._stored = True

    def _apply(self, change: RecordChange) -> bool:
        """Store a record of another leader; return whether it is stored or never will be."""
        assert self._files is not None
        try:
            self._files.apply(change)
        except RetryError as exc:
            self._unstored = change
            if not self._is_told:
                log(_LOG, logging.WARNING, "shard_waits_for_space", error=str(exc), **self._facts)
            self._is_told = True
            return False
        except BadPayloadError as exc:
            self._core.follower.stop(str(exc))
            self._do([StopReading(str(exc))])
        return True

    def _lead(self, action: Lead) -> None:
        assert self._files is not None
        self._files.publish()
        self._files.resume()
        log(_LOG, logging.INFO, "shard_led", term=action.term, **self._facts)

    def _mark(self) -> None:
        """Sync the segments and replace the mark, if something counted since. On a full disk the
        old mark stays. It is behind the stored rows, which is harmless.
        """
        position = self._core.position.mark()
        if position == self._marked or position.parts or self._unstored is not None:
            return
        assert self._files is not None
        self._files.publish()
        self._files.sync()
        before = self._is_unmarked
        try:
            self._marks.write(self._now_marked(position))
        except RetryError as exc:
            # A commit may be under way, and its record may count: this must not be its outcome.
            self._is_unmarked = True
            if not before:
                log(_LOG, logging.WARNING, "mark_waits_for_space", error=str(exc), **self._facts)
        else:
            self._marked, self._is_unmarked = position, False
        if self._is_unmarked != before:
            self._show()

    def _now_marked(self, position: LogPosition) -> Marked:
        assert self._files is not None
        return Marked(
            position=position,
            producers=self._core.follower.producers,
            next_serial=self._files.next_serial(),
        )

    def _look(self) -> LogView:
        core = self._core
        follower, leader = core.follower, core.leader
        is_ready = self._unstored is None and not self._has_failed
        leads = leader is not None and follower.status in READING_STATUSES and is_ready
        return LogView(
            status=follower.status,
            reason=follower.reason,
            progress=follower.progress(),
            term=core.position.term,
            leader=core.position.site,
            leads=leads,
            synced=self._marked.sequence,
            waiting=0 if leader is None else leader.oldest(),
            is_full=self._unstored is not None or self._is_unmarked or self._has_failed,
        )

    @property
    def reads(self) -> bool:
        """Whether messages of the tail are wanted."""
        return self.view.status is not FollowerStatus.STOPPED

    @property
    def _facts(self) -> dict[str, object]:
        return {"database": self.database, "shard": self.shard}


_REPEATED: Final = Outcome(
    duplicate=True,
    count=0,
    timestamp_us=0,
    frame_serial=0,
    frame_timestamp_us=0,
    frame_places=None,
)
