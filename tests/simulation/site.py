"""A simulated site: the product's shard, a disk that loses unsynced data, a drifting clock."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from siltstone.fs.memory import PowerCut
from siltstone.store.writer.replication.actions import (
    Action,
    CallStored,
    Closed,
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
from siltstone.store.writer.replication.health import (
    ClaimTimer,
    Lease,
    OutboxTimer,
    PeerWatch,
    clock_is_wrong,
)
from siltstone.store.writer.replication.leader import CallAdmission
from siltstone.store.writer.replication.messages import MessageKind
from siltstone.store.writer.replication.shard import READING_STATUSES, ReplicatedShard
from siltstone.store.writer.replication.sites.membership import Hold, leave
from tests.simulation.disk import Disk, Found, Row, rows_of, scan
from tests.simulation.requests import Request

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_US = 300_000
# What one call takes in the body of a record, at most.
CALL_BYTES = 48


class Site:
    """One site. `shard` is None while it is down."""

    def __init__(self, world: World, name: str, rank: int) -> None:
        self.world = world
        self.name = name
        self.rank = rank
        self.rate = world.rng.uniform(0.95, 1.05)
        self.wall_offset_us = 0
        self.disk = Disk()
        self.shard: ReplicatedShard | None = None
        self.rows: list[Row] = []
        self.chains: list[bytes] = []
        self.synced = 0
        self.durable = 0
        self.has_log = True
        self.has_network = True
        self.paused_us = 0
        self.is_delivering = False
        self.is_copying = False
        self.is_ticking = False
        self.fresh = 0
        # The sequence that is read at this moment, or 0.
        self.taking = 0
        self.known: dict[str, int] = {}
        self.queue: deque[Request] = deque()
        self.incarnation = 0

    # Time

    def clock_us(self) -> int:
        return int(self.world.now_us * self.rate)

    def wall_us(self) -> int:
        return self.clock_us() + self.wall_offset_us

    def is_paused(self) -> bool:
        return self.paused_us > self.world.now_us

    # Life

    def start(self) -> None:
        """Continue behind the last mark, with a boot that was never used before."""
        world = self.world
        found = self.disk.recover(world.identity)
        self.rows, self.chains = found.rows, found.chains
        self.synced = self.durable = found.position.marked
        self.shard = world.kit.shard(
            self.name,
            self.start_boot(),
            self.make_follower(found),
            window=world.plan.window,
            part_bytes=world.plan.part_bytes,
        )
        local = self.clock_us()
        self.claims = ClaimTimer(self.rank, local)
        self.outbox = OutboxTimer()
        self.lease = Lease()
        self.watches = {site.name: PeerWatch(local) for site in world.sites if site is not self}
        self.incarnation += 1
        self.fresh = min(self.fresh, found.position.sequence)
        world.check_site(self)
        if self.has_log:
            self.look()
        self.wake()
        if not self.is_ticking:
            self.is_ticking = True
            world.after(world.rng.randrange(TICK_US), self.tick)

    def make_follower(self, found: Found) -> Follower:
        return self.world.kit.follower(found.position, found.producers, tuple(found.parts))

    def start_boot(self) -> int:
        return self.new_boot()

    def new_boot(self) -> int:
        return self.world.rng.getrandbits(63)

    def crash(self, *, power: bool) -> None:
        """End the process; with a power cut, what was not synced is lost, in part."""
        fs = self.disk.fs
        in_order = self.world.rng.random() < 0.5
        clone = fs.crash_clone(self.world.rng, in_order=in_order) if power else fs.kill_clone()
        self.disk = Disk(clone)
        self.shard = None
        self.queue.clear()
        self.world.event(f"{self.name} crashes")
        self.world.seen["crash"] += 1

    def reading(self) -> ReplicatedShard | None:
        """Return the shard if it can read the log now."""
        shard = self.shard
        if shard is None or not self.has_log or shard.follower.status not in READING_STATUSES:
            return None
        return shard

    # The log

    def wake(self) -> None:
        """Deliver what the log has, after a while."""
        if not self.is_delivering:
            self.is_delivering = True
            self.world.after(self.world.delay(), self.deliver)

    def look(self) -> None:
        """Compare our position with the bounds of the log."""
        log = self.world.log
        if self.shard is not None:
            bounds = LogBounds(first=log.first, last=log.last, nonce=log.nonce)
            self.act(self.shard.attach(bounds))

    def deliver(self) -> None:
        self.is_delivering = False
        world = self.world
        if self.reading() is None:
            return
        if self.is_paused():
            self.is_delivering = True
            world.after(self.paused_us - world.now_us, self.deliver)
            return
        for _ in range(world.rng.randint(1, 5)):
            shard = self.reading()
            if shard is None:
                return
            following = shard.position.sequence + 1
            if following > world.log.last:
                return
            if following < world.log.first:
                self.look()
                return
            self.read(shard, following)
        self.wake()

    def read(self, shard: ReplicatedShard, sequence: int) -> None:
        world = self.world
        data = world.delivered(sequence)
        chance = world.rng.random()
        if chance < 0.01 and sequence < world.log.last:
            self.act(shard.read(sequence + 1, world.delivered(sequence + 1)))
        elif chance < 0.02:
            at = world.rng.randrange(len(data))
            self.act(shard.read(sequence, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
        if self.shard is shard:
            self.taking = sequence
            self.act(shard.read(sequence, data))
            self.taking = 0
            world.check_site(self)
            self.serve()

    # Actions

    def act(self, actions: list[Action]) -> None:
        try:
            for action in actions:
                self.execute(action)
        except PowerCut:
            self.power_fails()

    def power_fails(self) -> None:
        self.crash(power=True)
        self.world.after(self.world.rng.randrange(2_000_000), self.restart)

    def restart(self) -> None:
        if self.shard is None:
            try:
                self.start()
            except PowerCut:
                self.power_fails()

    def execute(self, action: Action) -> None:
        world = self.world
        match action:
            case PublishMessage():
                if self.has_log:
                    world.publish(action.data)
            case StoreMessage():
                self.store(action)
            case CallStored() | Refused() | Unknown() | Closed() | Confirmed():
                world.answer(self, action)
            case Lead():
                self.outbox = OutboxTimer()
                world.event(f"{self.name} leads term {action.term}")
                world.seen["lead" if action.term == 1 else "lead again"] += 1
            case StepDown():
                world.seen["step down"] += 1
                self.queue_refused()
            case FetchMessage():
                self.wake()
            case Copy():
                world.seen["copy"] += 1
                self.copy_later()
            case StopReading():
                world.stopped(self, action.reason)

    def store(self, action: StoreMessage) -> None:
        self.disk.append(action.mark, action.data)
        self.rows += rows_of(action.change)
        self.chains.append(action.mark.chain)
        self.claims.heard(self.clock_us())

    def log_has_stored(self, data: bytes) -> None:
        """Hear that the log has stored a message. A site must not act on it."""

    def queue_refused(self) -> None:
        """Give the queued requests to the shard, which no longer leads."""
        self.world.after(0, self.serve)

    def sync(self) -> None:
        shard = self.shard
        assert shard is not None
        try:
            self.disk.sync()
        except PowerCut:
            self.power_fails()
            return
        self.durable = self.disk.last_mark
        self.synced = self.synced_position(shard)
        self.world.report(self, self.synced)

    def synced_position(self, shard: ReplicatedShard) -> int:
        return shard.position.marked

    # Requests

    def receive(self, request: Request) -> None:
        if self.shard is not None:
            self.queue.append(request)
            self.serve()

    def serve(self) -> None:
        """Hand the queued requests to the shard, as far as the window has room."""
        world = self.world
        while self.queue and self.shard is not None and not self.is_paused():
            shard = self.shard
            calls: list[str] = []
            most = world.rng.randint(1, 3)
            if shard.leader is not None and not shard.leader.room(most * CALL_BYTES + 4):
                return
            while self.queue and self.queue[0].kind == "call" and len(calls) < most:
                request = self.queue.popleft()
                assert request.call is not None
                admission, answers = shard.admit(request.id, request.call)
                self.act([*answers])
                if admission is CallAdmission.TAKEN:
                    calls.append(f"{request.publisher}:{request.number}")
            if self.shard is not shard:
                return
            if calls:
                if world.rng.random() < 0.03:
                    self.act(shard.withdraw())
                else:
                    self.act(shard.freeze(MessageKind.ROWS, " ".join(calls).encode()))
            elif self.queue and self.queue[0].kind != "call":
                request = self.queue.popleft()
                if request.kind == "close":
                    self.act(shard.close(request.id, request.producer))
                else:
                    self.act(shard.ask(request.id))

    def visible_rows(self) -> list[Row]:
        """Return what a reader sees here."""
        return self.rows

    # Regular work

    def tick(self) -> None:
        self.is_ticking = False
        if self.shard is None:
            return
        self.is_ticking = True
        world = self.world
        if self.is_paused():
            world.after(self.paused_us - world.now_us, self.tick)
            return
        world.after(int(TICK_US / self.rate), self.tick)
        if self.shard.follower.status is FollowerStatus.STOPPED:
            return
        self.renew()
        if world.rng.random() < 0.6:
            self.sync()
        if self.has_log:
            if world.rng.random() < 0.3:
                self.look()
            self.wake()
        self.work()
        self.serve()

    def work(self) -> None:
        if self.shard is not None and self.shard.leader is not None:
            self.lead()
        elif self.shard is not None:
            self.follow()

    def lead(self) -> None:
        shard, local = self.shard, self.clock_us()
        assert shard is not None
        assert shard.leader is not None
        if self.outbox.watch(shard.leader.oldest(), local):
            self.act(shard.publish_again())
        if not self.outbox.is_stalled(local):
            progress = shard.follower.progress()
            for site in self.world.sites:
                if site is not self:
                    self.world.heartbeat(self, site, shard.position.term, progress)
        world = self.world
        if world.plan.moves and self.has_network:
            if self.name not in world.placement.insync:
                self.join()
            world.roster.plan(self)
            world.roster.retire(self)
            if self.shard is not shard or shard.leader is None:
                return
        if self.has_network and world.rng.random() < 0.5:
            world.trim()
            for site in world.sites:
                if (site.shard is None or not site.has_log) and world.rng.random() < 0.2:
                    world.change_placement(leave(world.placement, site.name))

    def follow(self) -> None:
        shard, world, local = self.shard, self.world, self.clock_us()
        assert shard is not None
        if shard.follower.status is FollowerStatus.BEHIND:
            self.copy_later()
            return
        if not self.has_network:
            return
        self.join()
        walls = [site.wall_us() for site in world.sites]
        if clock_is_wrong(self.wall_us(), walls):
            return
        if self.name not in world.placement.insync and not world.plan.moves:
            return
        if world.plan.moves:
            self.claims.rank = world.roster.rank(self)
        if self.claims.is_due(local):
            self.claim()

    def join(self) -> None:
        """Become a replica, or be in sync."""
        world, shard = self.world, self.shard
        assert shard is not None
        # What a site knows of the others may be old.
        if world.rng.random() < 0.5:
            self.known = dict(world.reports)
        step = world.kit.next_placement(
            world.placement,
            self.name,
            shard.follower.status,
            synced=self.synced,
            members=self.known,
        )
        world.change_placement(step)

    def claim(self) -> None:
        if self.shard is not None:
            self.act(self.shard.claim())
            self.claims.claimed(self.clock_us())

    def asked_to_lead(self, term: int) -> None:
        """Claim because the leader of a term asks for it."""
        shard = self.shard
        if shard is None or self.is_paused() or not self.has_log:
            return
        if shard.follower.status is FollowerStatus.CURRENT and shard.position.term == term:
            self.world.seen["handover"] += 1
            self.take_lead(shard)

    def take_lead(self, shard: ReplicatedShard) -> None:
        self.act(shard.claim())

    def hear(self, term: int, progress: PeerProgress) -> None:
        """Take a heartbeat."""
        shard = self.shard
        if shard is None or self.is_paused() or shard.follower.status not in READING_STATUSES:
            return
        if term >= shard.position.term:
            self.claims.heard(self.clock_us())
        self.act(shard.compare(progress))

    # Leases

    def renew(self) -> None:
        """Renew our own entry, and look at those of the others."""
        world, local = self.world, self.clock_us()
        if not self.has_network:
            return
        if self.lease.try_renew(local):
            incarnation = self.incarnation

            def renewed() -> None:
                world.entries[self.name] = world.entries.get(self.name, 0) + 1
                if self.incarnation == incarnation and self.shard is not None:
                    self.lease.renewed(local)

            world.after(world.delay(), renewed)
        for site in world.sites:
            watch = self.watches.setdefault(site.name, PeerWatch(local))
            if site is not self:
                watch.saw(world.entries.get(site.name, 0), local)
                if watch.is_dead(local):
                    world.declared_dead(site)

    def is_serving(self) -> bool:
        return (
            self.shard is not None
            and not self.is_paused()
            and self.lease.may_serve(self.clock_us())
        )

    # Copying

    def copy_later(self) -> None:
        if not self.is_copying:
            self.is_copying = True
            hold = Hold(sequence=self.world.log.first, until_us=self.world.now_us + 2_000_000)
            self.world.holds.append(hold)
            self.world.after(self.world.delay() * 5, self.copy)

    def copy(self) -> None:
        """Copy the marked state of a peer that has what the log no longer has."""
        self.is_copying = False
        world, shard = self.world, self.shard
        if (
            shard is None
            or shard.follower.status is not FollowerStatus.BEHIND
            or not self.has_network
        ):
            return
        for peer in world.rng.sample(world.sites, len(world.sites)):
            if (
                peer is self
                or peer.shard is None
                or peer.shard.follower.status not in READING_STATUSES
            ):
                continue
            data = peer.disk.synced_bytes()
            found = scan(data, world.identity)
            if found.position.sequence + 1 < world.log.first:
                continue
            if found.position.sequence <= shard.position.sequence:
                continue
            if shard.position.index and found.position.nonce != shard.position.nonce:
                continue
            try:
                self.disk.replace(data[: found.end], found.position)
            except PowerCut:
                self.power_fails()
                return
            self.rows, self.chains = found.rows, found.chains
            self.synced = self.durable = found.position.marked
            world.report(self, self.synced)
            self.act(
                shard.jump(
                    found.position, found.producers, tuple(found.parts), boot=self.new_boot()
                )
            )
            world.seen["jump"] += 1
            world.event(f"{self.name} jumps to {found.position.index} from {peer.name}")
            world.check_site(self)
            if self.has_log:
                self.look()
            self.wake()
            return
