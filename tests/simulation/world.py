"""A run of the simulation: sites, one shared log, publishers, a network, faults, and one seed.

Nothing runs at the same time: events stand in a queue by their simulated time, and each is one
step. All random decisions come from the seed, so a seed is a run. After every step the world checks
what the step could have broken:

- no acknowledged row is lost, repeated or out of order, and no refused row counts;
- the chain of every site is that of the log, as the model reads the log;
- a site acknowledges only what counted in its own tail, in a term that it leads there;
- readers see rows that the log holds, and nothing else;
- an intact log stops no site, and two sites never lead one term;
- the log is never trimmed above what an in-sync site has on its disk.

At the end the faults stop. Then every publisher must get its answers, and all sites must be equal.
After damage to the log itself, the promise is smaller: a site that passes an acknowledged record
has the history that its leader had, or it stops.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from siltstone.store.writer.replication.actions import (
    Answer,
    CallStored,
    Closed,
    Confirmed,
    Refused,
    Unknown,
)
from siltstone.store.writer.replication.codec import decode, encode
from siltstone.store.writer.replication.follower import Follower, FollowerStatus, PeerProgress
from siltstone.store.writer.replication.messages import Genesis, LogIdentity, RecordMessage
from siltstone.store.writer.replication.sender import Sender
from siltstone.store.writer.replication.shard import ReplicatedShard
from siltstone.store.writer.replication.sites.membership import (
    Hold,
    ShardSites,
    majority,
    next_placement,
    trim,
)
from siltstone.store.writer.replication.sites.planning import step
from tests.simulation.disk import Disk, Row
from tests.simulation.publisher import Publisher
from tests.simulation.requests import Request
from tests.simulation.roster import Roster
from tests.simulation.site import Site
from tests.simulation.truth import Truth

IDENTITY = LogIdentity(database=b"d" * 16, shard=0, epoch=1)
SETTLE_US = 240_000_000
EVENTS_KEPT = 60


class Violation(AssertionError):  # noqa: N818 -- a finding, as in "invariant violated"
    """An invariant does not hold."""


@dataclass
class Kit:
    """The parts of the product that a run uses. A mutation replaces one of them."""

    shard: type[ReplicatedShard] = ReplicatedShard
    follower: type[Follower] = Follower
    sender: type[Sender] = Sender
    site: type[Site] = Site
    trim: Callable[..., ShardSites | None] = trim
    next_placement: Callable[..., ShardSites | None] = next_placement
    step: Callable[..., ShardSites | None] = step


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one run contains."""

    sites: int
    publishers: int
    calls: int
    seconds: float
    lost: float
    twice: float
    slow: float
    window: int
    part_bytes: int
    faults_per_second: float
    damage: str
    # How long a site is cut off, at most.
    apart_us: int = 4_000_000
    # Whether sites drain and leave, and shards move.
    moves: bool = False

    @classmethod
    def draw(cls, rng: Random) -> Plan:
        return cls(
            sites=rng.choice([2, 3, 3, 3, 4]),
            publishers=rng.choice([1, 2, 2]),
            calls=rng.randint(3, 10),
            seconds=rng.choice([2.0, 4.0, 6.0]),
            lost=rng.choice([0.0, 0.05, 0.3]),
            twice=rng.choice([0.0, 0.1, 0.3]),
            slow=rng.choice([0.0, 0.1, 0.3]),
            window=rng.choice([1, 3, 4]),
            part_bytes=rng.choice([60, 60, 400]),
            faults_per_second=rng.choice([0.5, 2.0, 4.0]),
            damage=rng.choice([""] * 17 + ["cut", "anew", "altered"]),
            # Drawn last, and not from `rng`: the other runs stay as they were.
            moves=Random(rng.getstate()[1][0]).random() < 0.35,
        )


@dataclass
class Log:
    """The shared log: what it has stored, trimmed messages included."""

    nonce: bytes
    messages: list[bytes] = field(default_factory=list)
    first: int = 1
    # Nothing is stored before this time: the log elects a leader of its own.
    paused_us: int = 0

    @property
    def last(self) -> int:
        return len(self.messages)

    def at(self, sequence: int) -> bytes:
        assert self.first <= sequence <= self.last
        return self.messages[sequence - 1]


@dataclass(frozen=True)
class Late:
    """An acknowledgement after damage: its record, and the history that its leader had."""

    sequence: int
    seen: int
    chain: bytes


class World:
    """One run."""

    identity = IDENTITY

    def __init__(self, seed: int, *, kit: Kit | None = None, plan: Plan | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.kit = kit or Kit()
        self.plan = plan or Plan.draw(self.rng)
        self.now_us = 0
        self.steps = 0
        self.is_faulty = True
        self.is_damaged = False
        self.events: list[str] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.log = Log(b"n" * 16)
        self.truth = Truth()
        self.requests: dict[int, Request] = {}
        self.holds: list[Hold] = []
        self.entries: dict[str, int] = {}
        # The synced positions that sites have reported, as others know them: a while later.
        self.reports: dict[str, int] = {}
        self.late: list[Late] = []
        self.acknowledged_index = 0
        self.in_flight: set[int] = set()
        # How often things happened, to know that the runs contain them.
        self.seen: Counter[str] = Counter()
        self.sites: list[Site] = []
        for rank in range(self.plan.sites):
            self.sites.append(self.kit.site(self, "abcd"[rank], rank))
        if self.plan.sites > 2 and self.rng.random() < 0.2:
            # One wrong clock: a minority.
            self.rng.choice(self.sites).wall_offset_us = self.rng.choice([-1, 1]) * 3_600_000_000
        names = [site.name for site in self.sites]
        # The fourth site is new: it has nothing, and must become a replica first.
        members = frozenset(names[:3])
        wanted = frozenset(names) if len(names) > 3 else frozenset()
        self.placement = ShardSites(replicas=members, insync=members, wanted=wanted)
        self.roster = Roster(self)
        self.publishers = {
            name: Publisher(self, name, self.plan.calls)
            for name in ("p", "q")[: self.plan.publishers]
        }

    # Time

    def after(self, delay_us: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._count, act))

    def delay(self) -> int:
        """Return the time that a message takes: mostly little, sometimes long."""
        if self.is_faulty and self.rng.random() < self.plan.slow:
            return self.rng.randrange(3_000_000)
        return self.rng.randrange(500, 30_000)

    def step(self) -> None:
        at_us, _, act = heapq.heappop(self._queue)
        self.now_us = max(self.now_us, at_us)
        self.steps += 1
        act()

    def event(self, text: str) -> None:
        self.events.append(f"{self.now_us / 1e6:.3f} {text}")
        del self.events[:-EVENTS_KEPT]

    # A run

    def run(self) -> World:
        self.append(encode(Genesis(IDENTITY, self.log.nonce)))
        for site in self.sites:
            site.start()
        # The first leader need not wait for silence.
        self.after(100_000, lambda: self.claim(self.sites[0]))
        for name in self.publishers:
            self.after(self.rng.randrange(1_000_000), partial(self.turn, name))
        self.after(0, self.fault)
        if self.plan.moves:
            self.after(0, self.roster.act)
        end_us = int(self.plan.seconds * 1e6)
        while self._queue and self._queue[0][0] < end_us:
            self.step()
        self.heal()
        if not self.is_damaged:
            self.settle()
        return self

    def turn(self, name: str) -> None:
        publisher = self.publishers[name]
        publisher.turn()
        self.reads()
        if not publisher.is_done() or self.is_faulty:
            pause_us = 600_000 if self.rng.random() < 0.3 else 60_000
            if not self.is_faulty:
                pause_us = 400_000
            self.after(self.rng.randrange(pause_us), lambda: self.turn(name))

    def heal(self) -> None:
        """End all faults."""
        self.is_faulty = False
        self.log.paused_us = 0
        self.roster.rest()
        for site in self.sites:
            site.paused_us = min(site.paused_us, self.now_us)
            site.disk.fs.operations_left = None
            self.join_network(site)
            if site.shard is None:
                site.start()

    def settle(self) -> None:
        """Every call gets its answer, and all sites become equal."""
        publisher = Publisher(self, "probe", 1)
        self.publishers["probe"] = publisher
        self.after(0, lambda: self.turn("probe"))
        deadline_us = self.now_us + SETTLE_US
        while not self.is_settled():
            if self.now_us > deadline_us:
                self.check(False, f"not live: {self.why_not()}")  # noqa: FBT003 -- always wrong
            for _ in range(8):
                self.step()
        tables = {
            site.shard.follower.producers.encode() for site in self.sites if site.shard is not None
        }
        self.check(len(tables) == 1, "the tables of producers differ")
        for site in self.sites:
            self.check(site.rows == self.truth.rows, f"{site.name} has other rows than the log")
        for publisher in self.publishers.values():
            for number in publisher.acked:
                self.check(
                    (publisher.name, number) in self.truth.rows_at,
                    f"acknowledged, but lost: {publisher.name} {number}",
                )

    def is_settled(self) -> bool:
        if self.plan.moves and not self.roster.is_settled():
            return False
        return all(publisher.is_done() for publisher in self.publishers.values()) and all(
            site.shard is not None
            and site.shard.position.index == self.truth.state.index
            and site.shard.follower.status is FollowerStatus.CURRENT
            for site in self.sites
        )

    def why_not(self) -> str:
        sites = ", ".join(
            f"{site.name} {site.shard.follower.status.value} at {site.shard.position.index}"
            if site.shard is not None
            else f"{site.name} down"
            for site in self.sites
        )
        waiting = [one.name for one in self.publishers.values() if not one.is_done()]
        placed = f"{self.placement} {self.roster.sites}" if self.plan.moves else ""
        return f"index {self.truth.state.index}, {sites}, waiting {waiting} {placed}"

    # The log

    def publish(self, data: bytes) -> None:
        """Take a message that may be lost, delayed, reordered or stored twice."""
        copies = 1
        if self.is_faulty:
            if self.rng.random() < self.plan.lost:
                return
            while copies < 4 and self.rng.random() < self.plan.twice:
                copies += 1
        for _ in range(copies):
            self._count += 1
            number = self._count
            self.in_flight.add(number)
            self.after(self.delay(), partial(self.arrive, number, data))

    def arrive(self, number: int, data: bytes) -> None:
        if number not in self.in_flight:
            return
        if self.now_us < self.log.paused_us:
            self.after(self.log.paused_us - self.now_us, lambda: self.arrive(number, data))
            return
        self.in_flight.discard(number)
        self.append(data)

    def append(self, data: bytes) -> None:
        self.log.messages.append(data)
        if not self.is_damaged:
            index, parts = self.truth.state.index, self.truth.state.parts
            wrong = self.truth.store(data)
            self.seen["ignored"] += self.truth.state.index == index
            self.seen["parts"] += self.truth.state.parts > parts
            self.check(not wrong, wrong)
            row = self.truth.rows[-1] if self.truth.rows else None
            if row is not None and row[0] in self.publishers:
                refused = self.publishers[row[0]].refused
                self.check(row[1] not in refused, f"refused for certain, but counted: {row}")
        for site in self.sites:
            site.log_has_stored(data)
            site.wake()

    def delivered(self, sequence: int) -> bytes:
        return self.log.at(sequence)

    def trim(self) -> None:
        """Plan a trim, write it to the placement, then trim: each a while after the other."""
        planned = self.kit.trim(
            self.placement,
            synced=dict(self.reports),
            holds=self.holds,
            last=self.log.last,
            now_us=self.now_us,
        )
        self.change_placement(planned)

    def report(self, site: Site, synced: int) -> None:
        """Make a synced position known to the other sites."""
        known = max(synced, self.reports.get(site.name, 0))
        self.reports[site.name] = known

    def change_placement(self, planned: ShardSites | None) -> None:
        """Write a placement by compare-and-set, a while after it was computed."""
        if planned is None:
            return
        read = self.placement

        def write() -> None:
            if self.placement is not read:
                return
            self.placement = planned
            self.check_removal(read, planned)
            if planned.trim > read.trim:
                self.after(self.delay(), lambda: self.trimmed(planned.trim))
            self.check_trim()

        self.after(self.delay(), write)

    def trimmed(self, below: int) -> None:
        self.log.first = max(self.log.first, min(below, self.log.last))
        self.seen["trim"] += 1
        self.event(f"log trimmed below {self.log.first}")
        self.check_trim()

    # The network

    def request(self, kind: str, publisher: str, session: int) -> Request:
        self._count += 1
        request = Request(kind, publisher, session, self._count)
        self.requests[request.id] = request
        return request

    def ask(self, publisher: str) -> None:
        request = self.request("ask", publisher, 0)
        request.needed = self.acknowledged_index
        self.send(request)

    def send(self, request: Request) -> None:
        """Send a request to a site that leads, or to any."""
        leaders = [site for site in self.sites if site.shard is not None and site.shard.leader]
        site = self.rng.choice(leaders if leaders and self.rng.random() < 0.85 else self.sites)
        if site.has_network and not self.is_lost():
            self.after(self.delay(), lambda: site.receive(request))

    def is_lost(self) -> bool:
        return self.is_faulty and self.rng.random() < self.plan.lost / 2

    def answer(self, site: Site, answer: Answer) -> None:
        request = self.requests[answer.request]
        match answer:
            case CallStored():
                self.check_stored(site, request)
            case Refused():
                self.seen["refused"] += 1
            case Unknown():
                self.seen["unknown"] += 1
            case Closed():
                self.seen["fence"] += 1
            case Confirmed():
                self.seen["question"] += 1
        if site.has_network and not self.is_lost():
            publisher = self.publishers[request.publisher]
            self.after(self.delay(), lambda: publisher.answer(request, answer))

    def heartbeat(self, sender: Site, receiver: Site, term: int, progress: PeerProgress) -> None:
        if sender.has_network and receiver.has_network and not self.is_lost():
            self.after(self.delay(), lambda: receiver.hear(term, progress))

    def acknowledged(self, row: Row) -> None:
        """A publisher knows that its row is stored."""
        self.seen["acknowledged"] += 1
        if self.is_damaged:
            return
        self.check(row in self.truth.rows_at, f"acknowledged, but not stored: {row}")
        self.acknowledged_index = max(self.acknowledged_index, self.truth.rows_at[row])

    def reads(self) -> None:
        """Somebody reads at a site."""
        site = self.rng.choice(self.sites)
        if site.shard is None or self.is_damaged:
            return
        seen = site.visible_rows()
        self.check(seen == self.truth.rows[: len(seen)], f"{site.name} shows rows that may be lost")
        needed = self.rng.randint(0, self.truth.state.index)
        if site.shard.follower.has(needed):
            self.check(
                len(seen) >= self.truth.rows_until[needed],
                f"a read at {site.name} returns less than it was asked for",
            )

    # Faults

    def fault(self) -> None:
        if not self.is_faulty:
            return
        rng = self.rng
        self.after(int(rng.expovariate(self.plan.faults_per_second) * 1e6), self.fault)
        site = rng.choice(self.sites)
        kinds: list[Callable[[Site], None]] = [
            self.pause,
            self.cut_power,
            self.kill,
            self.cut_power_soon,
            self.leave_log,
            self.leave_network,
            self.elect,
            self.claim,
            self.claim,
            self.claim,
            self.claim,
        ]
        if rng.random() < 0.03:
            for each in self.sites:
                self.cut_power(each)
        elif self.plan.damage and not self.is_damaged and self.now_us > 800_000:
            self.damage()
        else:
            rng.choice(kinds)(site)

    def pause(self, site: Site) -> None:
        site.paused_us = self.now_us + self.rng.randrange(4_000_000)
        self.event(f"{site.name} pauses")

    def cut_power(self, site: Site) -> None:
        if site.shard is not None:
            site.crash(power=True)
            self.after(self.rng.randrange(3_000_000), site.restart)

    def kill(self, site: Site) -> None:
        if site.shard is not None:
            site.crash(power=False)
            self.after(self.rng.randrange(1_000_000), site.restart)

    def cut_power_soon(self, site: Site) -> None:
        site.disk.fs.operations_left = self.rng.randrange(6)

    def leave_log(self, site: Site) -> None:
        site.has_log = False
        self.event(f"{site.name} has no log")
        self.after(self.rng.randrange(self.plan.apart_us), lambda: self.join_network(site))

    def leave_network(self, site: Site) -> None:
        site.has_network = False
        self.after(self.rng.randrange(self.plan.apart_us), lambda: self.join_network(site))

    def join_network(self, site: Site) -> None:
        site.has_network = True
        if not site.has_log:
            site.has_log = True
            site.look()
            site.wake()

    def elect(self, _: Site) -> None:
        """The log elects a leader of its own: a pause, and messages under way are lost."""
        self.log.paused_us = self.now_us + self.rng.randrange(3_000_000)
        self.in_flight = {number for number in self.in_flight if self.rng.random() < 0.5}

    def claim(self, site: Site) -> None:
        """Claim without need: a wrong guess of a site must be harmless."""
        if site.shard is not None and site.name in self.placement.insync:
            site.claim()

    def damage(self) -> None:
        """Break the promises of the log."""
        log, rng = self.log, self.rng
        if log.last - log.first < 2:
            return
        self.is_damaged = True
        self.seen["damage"] += 1
        for site in self.sites:
            # A site that is down has what its next start finds.
            site.fresh = site.shard.position.sequence if site.shard is not None else 1 << 62
        cut = rng.randint(log.first, log.last - 1)
        match self.plan.damage:
            case "cut":
                del log.messages[cut:]
            case "anew":
                self.log = Log(b"m" * 16, [encode(Genesis(IDENTITY, b"m" * 16))])
                self.in_flight.clear()
                self.wipe(rng.choice(self.sites))
            case _:
                message = decode(log.messages[cut - 1])
                if isinstance(message, RecordMessage):
                    log.messages[cut - 1] = encode(replace(message, body=message.body + b" "))
        self.event(f"the log is damaged: {self.plan.damage} {cut}")
        if self.plan.damage == "anew":
            for site in self.sites:
                site.look()

    def wipe(self, site: Site) -> None:
        """A site loses its disk: it is the one that can begin the new log."""
        site.crash(power=True)
        site.disk = Disk()
        site.fresh = 0
        site.restart()

    # What must be true

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            raise Violation(f"{text} (seed {self.seed}, {self.now_us / 1e6:.3f} s)")

    def check_site(self, site: Site) -> None:
        """Check a site that has read something, has restarted, or has jumped."""
        shard = site.shard
        if shard is None or shard.follower.status is FollowerStatus.STOPPED:
            return
        position = shard.position
        if self.is_damaged:
            self.check_late(site)
            return
        truth = self.truth
        index = truth.index_at[position.sequence]
        self.check(
            position.index == index and position.chain == truth.chains[index],
            f"{site.name} has another history than the log",
        )
        count = truth.rows_until[index]
        self.check(len(site.rows) == count, f"{site.name} has another number of rows than the log")
        if shard.leader is not None:
            for other in self.sites:
                if other is not site and other.shard is not None and other.shard.leader is not None:
                    self.check(
                        other.shard.leader.term != shard.leader.term,
                        f"{site.name} and {other.name} lead term {shard.leader.term}",
                    )

    def check_stored(self, site: Site, request: Request) -> None:
        """Check an acknowledgement when a site gives it."""
        assert site.shard is not None
        position = site.shard.position
        if self.is_damaged:
            self.remember_late(site)
            return
        row = (request.publisher, request.number)
        index = self.truth.rows_at.get(row, 1 << 62)
        self.check(
            index <= position.index,
            f"{site.name} acknowledges what has not counted in its own tail: {row}",
        )
        self.check(
            self.truth.leaders[position.index] == (site.name, site.shard.boot),
            f"{site.name} acknowledges {row}, but does not lead",
        )

    def remember_late(self, site: Site) -> None:
        """Remember an acknowledgement of what counts at this moment, after damage."""
        message = decode(self.log.at(site.taking)) if site.taking else None
        if isinstance(message, RecordMessage):
            seen = message.place.seen
            self.late.append(Late(site.taking, seen, site.chains[seen]))
            for each in self.sites:
                self.check_late(each)

    def check_late(self, site: Site) -> None:
        shard = site.shard
        if shard is None or shard.follower.status is FollowerStatus.STOPPED:
            return
        sequence = shard.position.sequence
        for late in self.late:
            if site.fresh < sequence == late.sequence:
                self.check(
                    len(site.chains) > late.seen and site.chains[late.seen] == late.chain,
                    f"silent divergence: {site.name} passes {sequence}, which another site "
                    "acknowledged, with another history",
                )

    def check_trim(self) -> None:
        if self.is_damaged:
            return
        for site in self.sites:
            if site.name in self.placement.insync:
                self.check(
                    site.durable + 1 >= self.log.first,
                    f"the log is trimmed below {self.log.first}, but the in-sync site "
                    f"{site.name} has synced {site.durable}",
                )

    def check_removal(self, before: ShardSites, after: ShardSites) -> None:
        """Check that what stays when a replica is removed is enough without it."""
        if after.replicas >= before.replicas or not after.wanted:
            return
        self.seen["removal"] += 1
        ready = len(after.insync & after.wanted)
        self.check(
            ready >= majority(len(after.wanted)),
            f"a replica is removed while only {ready} of {len(after.wanted)} wanted are in sync",
        )

    def declared_dead(self, site: Site) -> None:
        self.check(not site.is_serving(), f"{site.name} is declared dead while it serves clients")

    def stopped(self, site: Site, reason: str) -> None:
        self.event(f"{site.name} stops: {reason}")
        self.seen["stop"] += 1
        self.check(self.is_damaged, f"{site.name} stops though the log is intact: {reason}")
