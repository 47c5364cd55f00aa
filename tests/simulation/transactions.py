"""Runs of the simulation with transactions in place of rows.

The sites use the product's router, attempts, and bytes of calls. The leader checks transactions as
the committer does, against the state that it has applied. A model that reads the log checks that
the committed transactions are serializable, in the order of the log:

- what a transaction has read, and what it requires, is so when it counts;
- no transaction counts twice, nor two with one id, and none that was refused;
- an acknowledged transaction has counted, with the serial that was told;
- a transaction that only read, and a refusal, speak of nothing older than what was acknowledged
  before it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, cast

from siltstone.errors import (
    ConflictError,
    OutcomeUnknownError,
    PreconditionError,
    SiltstoneError,
    Unmet,
)
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
from siltstone.store.shard.replicated.kv.router import (
    Answer,
    CommitRouter,
    answer_of,
    unstored_of,
)
from siltstone.store.shard.replicated.port import NotLeaderError
from siltstone.store.tx.commit.attempts import Admissions, Attempt, StoredAttempt
from siltstone.store.tx.commit.conflicts import ReadRange
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import (
    ANY_GENERATION,
    ANY_TERM,
    NO_ID,
    Operations,
    Requirement,
)
from siltstone.store.writer.replication import actions
from siltstone.store.writer.replication.actions import (
    Action,
    Confirmed,
    Lead,
    StepDown,
    StopReading,
)
from siltstone.store.writer.replication.follower import FollowerStatus
from siltstone.store.writer.replication.messages import MessageKind
from siltstone.store.writer.replication.shard import READING_STATUSES
from tests.simulation.disk import Row
from tests.simulation.site import Site
from tests.simulation.world import Kit, Plan, World

if TYPE_CHECKING:
    from siltstone.store.shard.replicated.log import ReplicatedLog
    from siltstone.store.shard.replicated.port import Replication

KEYS = (b"k", b"l")
TRANSACTIONS = 6
# Turns after which a client waits no more.
PATIENCE = 40
# After this time a site takes a call for lost.
CALL_US = 400_000


@dataclass(frozen=True, slots=True)
class Change:
    """One transaction in a record, as a row of the simulation."""

    name: str
    key: str
    value: str
    id: str
    sender: str
    number: int
    serial: int

    def row(self) -> str:
        fields = (self.name, self.key, self.value, self.id, self.sender)
        return "|".join([*fields, str(self.number), str(self.serial)])

    @classmethod
    def of(cls, row: Row) -> Change:
        name, key, value, id_, sender, number, serial = row[0].split("|")
        return cls(name, key, value, id_, sender, int(number), int(serial))


@dataclass
class State:
    """What the records up to some point have made."""

    serial: int = 0
    values: dict[str, str] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)

    def take(self, change: Change) -> None:
        self.serial = change.serial
        self.values[change.key] = change.value
        self.written[change.key] = change.serial
        if change.id:
            self.ids[change.id] = change.serial

    def copy(self) -> State:
        return State(self.serial, dict(self.values), dict(self.written), dict(self.ids))


@dataclass
class Group:
    """What the leader has under way: a record, or a question."""

    answers: list[tuple[Callable[[Answer], None], Answer]]
    # How many transactions the record has; 0 for a question.
    changes: int


@dataclass(frozen=True)
class View:
    leads: bool
    leader: str
    term: int


class TransactionSite(Site):
    """A site with a router, and with the leader's side of transactions."""

    admissions_of: type[Admissions] = Admissions
    router_of: type[CommitRouter] = CommitRouter

    def __init__(self, world: TransactionWorld, name: str, rank: int) -> None:
        super().__init__(world, name, rank)
        self.transactions = world
        self.group: Group | None = None
        self.calls: deque[tuple[Attempt, Operations, Callable[[Answer], None]]] = deque()
        self.question = 0
        self.floor = 0
        # Whether it replaces its state by a copy: then it knows nothing of what it had published.
        self.is_jumping = False
        self._state = State()
        self._folded: list[Row] = []
        self._count = 0

    def start(self) -> None:
        self.group, self.question = None, 0
        self.calls.clear()
        self.admissions = self.admissions_of()
        self.router = self.router_of(
            cast("ReplicatedLog", self),
            cast("Replication", self),
            sender=self.world.rng.randbytes(16),
            commit_here=self.commit_here,
            pending_bytes_max=lambda: 1 << 30,
        )
        super().start()

    def crash(self, *, power: bool) -> None:
        super().crash(power=power)
        self.router.close()

    # What the router needs.

    @property
    def site(self) -> str:
        return self.name

    @property
    def view(self) -> View:
        shard = self.shard
        if shard is None:
            return View(leads=False, leader="", term=0)
        leads = shard.leader is not None and shard.follower.status in READING_STATUSES
        return View(leads=leads, leader=shard.position.site, term=shard.position.term)

    def send(self, _: object, site: str, call: bytes, then: Callable[[bytes | None], None]) -> None:
        """Send a call; it may be lost, late, or arrive twice, and so may its answer."""
        world = self.transactions
        target = next(each for each in world.sites if each.name == site)
        assert isinstance(target, TransactionSite)
        copies = 2 if world.is_faulty and world.rng.random() < world.plan.twice / 2 else 1
        for _copy in range(copies):
            if self.has_network and not world.is_lost():
                world.after(world.delay(), lambda: target.take(call, self.name, then))
        world.after(CALL_US, lambda: then(None))

    def take(self, call: bytes, sender: str, then: Callable[[bytes | None], None]) -> None:
        world = self.transactions
        if self.shard is None or self.is_paused() or not self.has_network:
            return

        def answer(found: Answer | Point) -> None:
            if self.has_network and not world.is_lost():
                world.after(world.delay(), lambda: then(encode_answer(found)))

        kind, document, values = decode_ask(call)
        if kind is CallKind.COMMIT:
            self.commit_here(*decode_commit(document, values), answer)
        elif self.view.leads:
            answer(self.point())

    # The leader's side.

    def commit_here(
        self, attempt: Attempt, operations: Operations, then: Callable[[Answer], None]
    ) -> None:
        is_ours = attempt.term == self.admissions.term
        is_new = self.admissions.admit(attempt)
        before = self.admissions.answered(attempt)

        def tell(answer: Answer) -> None:
            unstored = unstored_of(answer)
            if unstored is not None:
                self.admissions.answer(attempt, unstored)
            then(answer)

        if not is_ours:
            then(NotLeaderError("another term"))
        elif is_new:
            self.calls.append((attempt, operations, tell))
            self.world.after(0, self.serve)
        elif before is not None:
            self.world.seen["answered again"] += 1
            then(answer_of(before))

    def serve(self) -> None:
        super().serve()
        while self.calls and self.shard is not None and not self.is_paused():
            leader = self.shard.leader
            if leader is None:
                for _, _, then in list(self.calls):
                    then(NotLeaderError("no leader"))
                self.calls.clear()
            elif self.group is not None or not leader.room():
                return
            else:
                self.try_batch(leader.term)

    def try_batch(self, term: int) -> None:
        shard = self.shard
        assert shard is not None
        state, changes = self.state().copy(), []
        answers: list[tuple[Callable[[Answer], None], Answer]] = []
        for _ in range(min(len(self.calls), self.world.rng.randint(1, 3))):
            attempt, operations, then = self.calls.popleft()
            if self.is_past(attempt, term):
                answers.append((then, NotLeaderError("its term has ended")))
                continue
            outcome = self.judge(operations, state, term)
            if isinstance(outcome, CommittedCall) and not outcome.duplicate and operations.writes:
                change = change_of(attempt, operations, outcome.serial)
                state.take(change)
                changes.append(self.recorded(change))
            answers.append((then, outcome))
        self.group = Group(answers, len(changes))
        if changes:
            text = " ".join(f"{change.row()}:1" for change in changes)
            self.act(shard.freeze(MessageKind.KV, text.encode()))
        elif any(self.speaks(answer) for _, answer in answers):
            self.world.seen["confirmed"] += 1
            self.question = self.transactions.next_request()
            self.act(shard.ask(self.question))
        else:
            self.finish()

    def is_past(self, attempt: Attempt, term: int) -> bool:
        return attempt.term != term

    def recorded(self, change: Change) -> Change:
        return change

    def speaks(self, answer: Answer) -> bool:
        """Return whether an answer speaks of data, so that it must be certain that we lead."""
        return not isinstance(answer, ConflictError | NotLeaderError)

    def judge(
        self, operations: Operations, state: State, term: int
    ) -> CommittedCall | SiltstoneError:
        """Decide as the committer does."""
        id_ = operations.id_digest.decode()
        if id_ and id_ in state.ids:
            return CommittedCall(state.ids[id_], duplicate=True)
        if operations.term not in (term, ANY_TERM):
            return ConflictError("it began in another term")
        if operations.reads and operations.read_serial < self.floor:
            return ConflictError("it is too old")
        for read in operations.reads or ():
            if state.written.get(read.topic.decode(), 0) > operations.read_serial:
                return ConflictError("it has read what was changed")
        for requirement in operations.requirements or ():
            found = state.values.get(requirement.topic.decode(), "")
            if found.encode() != requirement.value:
                unmet = Unmet(
                    topic=requirement.topic.decode(),
                    time_us=0,
                    present=True,
                    expected=requirement.value,
                    found=found.encode(),
                )
                return PreconditionError((unmet,))
        return CommittedCall(state.serial + bool(operations.writes), duplicate=False)

    def finish(self, error: SiltstoneError | None = None) -> None:
        """Give the answers of what was under way; an error stands for all that speak of it."""
        group, self.group, self.question = self.group, None, 0
        for then, answer in [] if group is None else group.answers:
            if error is None or isinstance(answer, ConflictError):
                then(answer)
            else:
                then(error)
        self.world.after(0, self.serve)

    # What happens

    def execute(self, action: Action) -> None:
        match action:
            case Confirmed() if action.request == self.question:
                self.finish()
                return
            case actions.Refused() | actions.Unknown() if action.request not in (
                self.world.requests
            ):
                # A question of ours; nothing was published for it.
                if self.group is not None and not self.group.changes:
                    self.finish(NotLeaderError("not confirmed"))
                return
            case Confirmed() if action.request not in self.world.requests:
                return
            case Lead():
                self.admissions.lead(action.term)
                self.floor = self.state().serial
            case StepDown():
                is_known = not self.is_jumping
                self.finish(NotLeaderError("deposed") if is_known else OutcomeUnknownError("jump"))
            case StopReading():
                self.finish(OutcomeUnknownError("stopped"))
            case _:
                pass
        super().execute(action)

    def store(self, action: actions.StoreMessage) -> None:
        count = len(self.rows)
        super().store(action)
        if action.change is None or action.change.kind is not MessageKind.KV:
            return
        if self.group is not None and self.group.changes:
            self.finish()
        changes = [Change.of(row) for row in self.rows[count:]]
        self.router.counted(
            StoredAttempt(bytes.fromhex(each.sender), each.number, each.serial) for each in changes
        )

    def read(self, shard: object, sequence: int) -> None:
        super().read(shard, sequence)  # type: ignore[arg-type] # the same shard
        if self.shard is not None:
            self.router.look()

    def tick(self) -> None:
        super().tick()
        if self.shard is not None:
            self.router.look()

    def copy(self) -> None:
        before, self.is_jumping = self.rows, True
        super().copy()
        self.is_jumping = False
        if self.rows is not before and self.shard is not None:
            self.router.lose()

    def state(self) -> State:
        """Return what this site has applied."""
        if self._folded is not self.rows or self._count > len(self.rows):
            self._state, self._folded, self._count = State(), self.rows, 0
        for row in self.rows[self._count :]:
            self._state.take(Change.of(row))
        self._count = len(self.rows)
        return self._state

    def point(self) -> Point:
        """Return what a transaction must see that begins now, at the leader.

        Another site may have read the record that is under way, and have acknowledged it.
        """
        group = self.group
        return Point(self.view.term, self.state().serial + (group.changes if group else 0))

    def has(self, point: Point) -> bool:
        """Return whether a transaction may read here what the leader had."""
        return self.state().serial >= point.serial


def change_of(attempt: Attempt, operations: Operations, serial: int) -> Change:
    ((topic, _), value), *_ = operations.writes.items()
    assert isinstance(value, bytes)
    text = value.decode()
    return Change(
        name=text.partition(".")[2],
        key=topic.decode(),
        value=text,
        id=operations.id_digest.decode(),
        sender=attempt.sender.hex(),
        number=attempt.number,
        serial=serial,
    )


class Client:
    """A program at a site: one transaction after the other, of all kinds."""

    def __init__(self, world: TransactionWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.number = 0
        self.made = 0
        self.id = ""
        self.kind = ""
        self.key = KEYS[0]
        self.ticket: CommitTicket | None = None
        self.point: Point | None = None
        self.site: TransactionSite | None = None
        self.incarnation = 0
        self.waited = 0
        self.patience = PATIENCE
        self.needed = 0
        self.operations: Operations | None = None
        self.seen: dict[bytes, str] = {}

    def is_done(self) -> bool:
        return self.made >= TRANSACTIONS and self.site is None

    def turn(self) -> None:
        world = self.world
        if not self.is_done():
            self.act()
            world.after(world.rng.randrange(120_000), self.turn)

    def act(self) -> None:
        if self.site is None:
            self.begin()
            return
        self.waited += 1
        if self.site.shard is None or self.site.incarnation != self.incarnation:
            # The site has ended, and the router with it.
            if self.ticket is None:
                self.end()
            return
        if self.ticket is None:
            self.enter()
        elif self.waited > self.patience:
            self.withdraw()

    def begin(self) -> None:
        world, rng = self.world, self.world.rng
        up = [each for each in world.sites if each.shard is not None]
        if not up:
            return
        site = rng.choice(up)
        assert isinstance(site, TransactionSite)
        self.number += 1
        self.site, self.incarnation, self.waited = site, site.incarnation, 0
        self.patience = PATIENCE if rng.random() < 0.6 else rng.randint(2, 8)
        self.kind = rng.choice(["count", "count", "require", "blind", "read"])
        if self.id:
            self.kind = "count"
        elif self.kind != "read" and rng.random() < 0.5:
            self.id = f"i{self.name}{self.number}"
        self.key = rng.choice(KEYS)
        self.needed = world.acknowledged_serial
        self.point = None
        if self.kind in ("count", "read"):
            self.ask()
        else:
            self.submit()

    def ask(self) -> None:
        """Ask the leader for its state, as a replica does."""
        site = self.site
        assert site is not None
        view, number = site.view, self.number
        if view.leads:
            self.point = site.point()
            self.enter()
        elif view.leader not in ("", site.name):

            def then(data: bytes | None) -> None:
                found = None if data is None else decode_answer(data)
                if isinstance(found, Point) and self.number == number and self.point is None:
                    self.point = found

            site.send(None, view.leader, encode_ask(CallKind.CONTEXT, {}), then)

    def enter(self) -> None:
        site = self.site
        assert site is not None
        if self.point is not None and site.has(self.point):
            self.submit()
        elif self.waited > self.patience:
            self.end()
        elif self.point is None and self.waited % 8 == 0:
            self.ask()

    def submit(self) -> None:
        site, point = self.site, self.point
        assert site is not None
        term = ANY_TERM if point is None else point.term
        generation = ANY_GENERATION
        id_ = self.id.encode() if self.kind != "read" else NO_ID
        operations = Operations(term, generation, True, id_)  # noqa: FBT003 - compiled
        key, state = self.key, site.state()
        count = 0
        if self.kind in ("count", "read"):
            operations.read_serial = state.serial
            operations.add_read(ReadRange(key, None, 0, 1))
            self.seen[key] = state.values.get(key.decode(), "")
            count = int(self.seen[key].partition(".")[0] or 0)
        elif self.kind == "require":
            wanted = self.seen.get(key, "").encode()
            operations.add_requirement(Requirement(key, 0, True, wanted, False))  # noqa: FBT003
        name = f"{self.name}{self.number}"
        self.operations = operations
        ticket = self.ticket = CommitTicket(operations, Lock())
        if self.kind == "read":
            site.router.confirm(operations, ticket)
        else:
            operations.writes[key, 0] = f"{count + 1}.{name}".encode()
            self.world.submitted[name] = (self.kind, dict(self.seen), operations)
            site.router.submit(operations, ticket, None)
        number = self.number
        ticket.on_done(lambda _: self.world.after(0, lambda: self.done(number)))

    def withdraw(self) -> None:
        assert self.site is not None
        assert self.ticket is not None
        if self.site.router.withdraw(self.ticket):
            self.refused()
        elif not self.ticket.done:
            self.unknown()

    def done(self, number: int) -> None:
        ticket = self.ticket
        if ticket is None or number != self.number:
            return
        world, error = self.world, ticket.error
        if error is None:
            self.committed()
        elif isinstance(error, OutcomeUnknownError):
            self.unknown()
        else:
            if isinstance(error, PreconditionError):
                world.seen["precondition"] += 1
                world.check_refusal(self.key.decode(), error, self.needed)
            elif isinstance(error, ConflictError):
                world.seen["conflict"] += 1
            self.refused()

    def committed(self) -> None:
        world, operations = self.world, self.operations
        assert operations is not None
        assert self.ticket is not None
        self.made += 1
        world.seen[f"committed {self.kind}"] += 1
        if self.kind == "read":
            world.check(
                operations.read_serial >= self.needed,
                f"{self.name} has read serial {operations.read_serial}, but {self.needed} was "
                "acknowledged before",
            )
        else:
            world.check_committed(f"{self.name}{self.number}", self.id, operations)
            world.acknowledged_serial = max(world.acknowledged_serial, operations.serial)
            self.id = ""
        self.end()

    def refused(self) -> None:
        name = f"{self.name}{self.number}"
        world = self.world
        world.refused.add(name)
        world.check(name not in world.serials, f"refused, but counted: {name}")
        world.seen["refused"] += 1
        if not self.id or world.rng.random() < 0.5:
            self.id = ""
        self.end()

    def unknown(self) -> None:
        """Without an id, nothing can be done about it."""
        self.world.seen["unknown"] += 1
        if not self.id:
            self.made += 1
        else:
            self.world.seen["tried again"] += 1
        self.end()

    def end(self) -> None:
        self.ticket = self.site = self.point = None


class TransactionWorld(World):
    """One run."""

    def __init__(self, seed: int, *, site: type[TransactionSite] = TransactionSite) -> None:
        rng_plan = World(seed).plan
        # One record under way, as of every key-value shard. An intact log.
        plan: Plan = replace(rng_plan, window=1, damage="", publishers=1)
        super().__init__(seed, kit=Kit(site=site), plan=plan)
        self.publishers = {}
        self.submitted: dict[str, tuple[str, dict[bytes, str], Operations]] = {}
        self.model = State()
        # All values of each key, with their serials; and the serial of each transaction.
        self.history: dict[str, list[tuple[int, str]]] = {}
        self.serials: dict[str, int] = {}
        self.refused: set[str] = set()
        self.acknowledged_serial = 0
        self.clients = [Client(self, name) for name in ("x", "y", "z")]
        for client in self.clients:
            self.after(self.rng.randrange(500_000), client.turn)

    def next_request(self) -> int:
        self._count += 1
        return self._count

    def append(self, data: bytes) -> None:
        count = len(self.truth.rows)
        super().append(data)
        for row in self.truth.rows[count:]:
            self.counted(Change.of(row))

    def counted(self, change: Change) -> None:
        """Compare a transaction that counts with the model."""
        name, model = change.name, self.model
        kind, seen, operations = self.submitted[name]
        found = model.values.get(change.key, "")
        self.check(name not in self.serials, f"counted twice: {name}")
        self.check(name not in self.refused, f"counted, but refused: {name}")
        self.check(change.serial == model.serial + 1, f"serials have a gap: {change}")
        self.check(not change.id or change.id not in model.ids, f"an id counts twice: {change.id}")
        if kind != "blind":
            before = seen.get(change.key.encode(), "")
            self.check(before == found, f"{name} counts over {found}, but has seen {before}")
        self.check(
            operations.writes.get((change.key.encode(), 0)) == change.value.encode(),
            f"{name} has written something else: {change}",
        )
        model.take(change)
        self.serials[name] = change.serial
        self.history.setdefault(change.key, []).append((change.serial, change.value))

    def check_committed(self, name: str, id_: str, operations: Operations) -> None:
        serial = self.model.ids.get(id_) if operations.duplicate else self.serials.get(name)
        self.seen["duplicate"] += operations.duplicate
        self.check(
            serial == operations.serial,
            f"{name} was acknowledged with serial {operations.serial}, but has {serial}",
        )

    def check_refusal(self, key: str, error: PreconditionError, needed: int) -> None:
        """A refusal must have been right at a moment after the transaction began."""
        expected = (error.unmet[0].expected or b"").decode()
        history = self.history.get(key, [])
        before = [value for serial, value in history if serial <= needed]
        since = [value for serial, value in history if serial > needed]
        possible = [before[-1] if before else "", *since]
        self.check(
            any(value != expected for value in possible),
            f"refused because of an old value: {key} is {expected} since serial {needed}",
        )

    def settle(self) -> None:
        deadline_us = self.now_us + 240_000_000
        while not self.is_settled():
            waiting = [client.name for client in self.clients if not client.is_done()]
            if self.now_us > deadline_us:
                self.check(False, f"not live: {self.why_not()} {waiting}")  # noqa: FBT003
            for _ in range(8):
                self.step()
        for site in self.sites:
            assert isinstance(site, TransactionSite)
            self.check(site.state() == self.model, f"{site.name} has another state than the log")

    def is_settled(self) -> bool:
        if not all(client.is_done() for client in self.clients):
            return False
        return super().is_settled() and all(
            site.shard is not None and site.shard.follower.status is FollowerStatus.CURRENT
            for site in self.sites
        )


def run(seed: int, site: type[TransactionSite] = TransactionSite) -> TransactionWorld:
    world = TransactionWorld(seed, site=site)
    world.run()
    return world
