"""Rules of the protocol, each broken once: what the simulation must find.

A mutation replaces one part of the product by a subclass that lacks one rule. `seed` is a run that
finds it. After a change of the simulation, find new seeds:

    python -m tests.simulation.mutations

Four rules are not here, because no seed is known that finds them. Unit tests hold them: a site
stops at another nonce, and at a log that is shorter than what it has read; a site that jumps knows
nothing of its outbox; a site does not join the in-sync sites behind a planned trim.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from siltstone.store.writer.replication.actions import (
    Action,
    Answer,
    CallStored,
    Closed,
    Confirmed,
    StoreMessage,
)
from siltstone.store.writer.replication.codec import DamagedRecordError, decode, encode
from siltstone.store.writer.replication.follower import Follower, FollowerStatus, MessageOutcome
from siltstone.store.writer.replication.health import Lease
from siltstone.store.writer.replication.leader import (
    CallAdmission,
    Frozen,
    Leader,
    WaitingRequest,
    Waits,
)
from siltstone.store.writer.replication.messages import (
    Message,
    MessageKind,
    ProducerCall,
    RecordChange,
    RecordMessage,
    Term,
)
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import (
    COUNTS,
    IGNORED,
    Judgement,
    LogPosition,
    Verdict,
    judge,
    link,
    skip,
)
from siltstone.store.writer.replication.sender import Sender
from siltstone.store.writer.replication.shard import ReplicatedShard
from siltstone.store.writer.replication.sites.membership import ShardSites, remove
from siltstone.store.writer.replication.sites.planning import step
from tests.simulation.disk import Found, Row
from tests.simulation.site import Site
from tests.simulation.world import Kit, Plan, Violation, World

SEEDS_SEARCHED = 3_000


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A rule that is broken, how it is broken, and a seed that finds it."""

    rule: str
    how: str
    kit: Kit
    seed: int
    plan: dict[str, Any]

    def run(self, seed: int, *, broken: bool = True) -> str:
        """Return the violation that this seed finds, or nothing."""
        plan = replace(Plan.draw(Random(seed)), **{"damage": "", "moves": False, **self.plan})
        try:
            World(seed, kit=self.kit if broken else Kit(), plan=plan).run()
        except Violation as exc:
            return str(exc)
        return ""


# Followers that judge wrongly


def with_place(message: Message, **changes: Any) -> Message:
    return (
        replace(message, place=replace(message.place, **changes))
        if isinstance(message, RecordMessage)
        else message
    )


class CountsOldTerms(Follower):
    def judge(self, sequence: int, message: Message) -> Judgement:
        position = self.position
        if isinstance(message, RecordMessage) and 0 < message.place.term < position.term:
            message = with_place(message, term=position.term, seen=0)
        return judge(position, sequence, message)


class CountsAnyIndex(Follower):
    def judge(self, sequence: int, message: Message) -> Judgement:
        if isinstance(message, RecordMessage) and message.place.term == self.position.term:
            message = with_place(message, index=self.position.index + 1)
        return judge(self.position, sequence, message)


class CountsAnyChain(Follower):
    def judge(self, sequence: int, message: Message) -> Judgement:
        return judge(self.position, sequence, with_place(message, chain=self.position.chain))


class CountsAnyRoot(Follower):
    def judge(self, sequence: int, message: Message) -> Judgement:
        root = self.position.root
        if isinstance(message, Term):
            message = replace(message, root=root)
        return judge(self.position, sequence, with_place(message, root=root))


class IgnoresSeen(Follower):
    def judge(self, sequence: int, message: Message) -> Judgement:
        return judge(self.position, sequence, with_place(message, seen=0))


class IgnoresTermsAhead(Follower):
    def judge(self, sequence: int, message: Message) -> Judgement:
        found = judge(self.position, sequence, message)
        is_ahead = isinstance(message, Term) and message.term > self.position.term + 1
        is_ahead |= isinstance(message, RecordMessage) and message.place.term > self.position.term
        return IGNORED if is_ahead and found.verdict is Verdict.STOPPED else found


class CountsSecondTerm(Follower):
    def judge(self, sequence: int, message: Message) -> Judgement:
        found = judge(self.position, sequence, message)
        position = self.position
        if found == IGNORED and isinstance(message, Term) and message.term == position.term:
            return COUNTS
        return found


class SkipsGaps(Follower):
    def judge(self, sequence: int, message: Message) -> Judgement:
        return judge(replace(self.position, sequence=sequence - 1), sequence, message)


class SkipsDamage(Follower):
    def read(self, sequence: int, data: bytes) -> MessageOutcome:
        try:
            decode(data)
        except DamagedRecordError:
            self.position = skip(self.position, sequence)
            return MessageOutcome(IGNORED)
        return super().read(sequence, data)


class ForgetsClosedProducers(Follower):
    def _count(
        self, sequence: int, message: Message, data: bytes, change: RecordChange | None
    ) -> None:
        super()._count(sequence, message, data, change)
        if isinstance(message, Term):
            self.producers._closed.clear()  # noqa: SLF001 -- what is broken here


class ForgetsRetiredProducers(Follower):
    def _count(
        self, sequence: int, message: Message, data: bytes, change: RecordChange | None
    ) -> None:
        super()._count(sequence, message, data, change)
        self.producers._retired.clear()  # noqa: SLF001 -- what is broken here


class KeepsPartsOfOldTerms(Follower):
    def __init__(
        self, position: LogPosition, producers: Producers, parts: tuple[bytes, ...] = ()
    ) -> None:
        if position.parts != len(parts):
            position = replace(position, parts=0, parts_all=0, parts_kind=0)
        super().__init__(position, producers, parts)

    def _count(
        self, sequence: int, message: Message, data: bytes, change: RecordChange | None
    ) -> None:
        before, parts = self.position, list(self._parts)
        super()._count(sequence, message, data, change)
        if isinstance(message, Term):
            self._parts = parts
            self.position = replace(
                self.position,
                parts=before.parts,
                parts_all=before.parts_all,
                parts_kind=before.parts_kind,
            )


# Leaders that promise too much


class AcknowledgesWhatItPublished(Leader):
    def _freeze(
        self, kind: MessageKind, bodies: list[bytes], waiting: list[WaitingRequest]
    ) -> list[Action]:
        calls = [one for one in waiting if one.kind is Waits.CALL]
        rest = [one for one in waiting if one.kind is not Waits.CALL]
        return super()._freeze(kind, bodies, rest) + [CallStored(one.request) for one in calls]


class AnswersRepetitionsFromTheOutbox(Leader):
    def admit(self, request: int, call: ProducerCall) -> tuple[CallAdmission, list[Answer]]:
        if call.number <= self._number_ahead(call.producer):
            return CallAdmission.ANSWERED, [CallStored(request)]
        return super().admit(request, call)


class StoresRepetitions(Leader):
    def admit(self, request: int, call: ProducerCall) -> tuple[CallAdmission, list[Answer]]:
        self._admitted.append(call)
        self._admitted_waiting.append(WaitingRequest(Waits.CALL, request))
        self._ahead[call.producer] = call.number
        return CallAdmission.TAKEN, []


class IgnoresPrevious(Leader):
    def _follows(self, call: ProducerCall, last: int) -> bool:
        return True


class ChangesFrozenBytes(Leader):
    """Publishes a record again with another `seen`: what has counted meanwhile."""

    def publish_again(self) -> list[Action]:
        chain = self._position.chain
        for at, frozen in enumerate(self._outbox):
            record = decode(frozen.data)
            assert isinstance(record, RecordMessage)
            place = replace(record.place, chain=chain, seen=self._position.index)
            data = encode(replace(record, place=place))
            self._outbox[at] = Frozen(frozen.index, data, frozen.waiting, frozen.kind)
            chain = link(chain, data)
        self._ahead_chain = chain
        return super().publish_again()


class NeverPublishesAgain(Leader):
    def publish_again(self) -> list[Action]:
        return []


class ClosesWithoutFence(Leader):
    def close(self, request: int, producer: bytes) -> list[Action]:
        return [Closed(request, self._producers.last(producer))]


class TakesCallsBehindAFence(Leader):
    def _is_closed(self, producer: bytes) -> bool:
        return self._producers.is_closed(producer)


class AnswersQuestionsAtOnce(Leader):
    def ask(self, request: int) -> list[Action]:
        return [Confirmed(request, self._position.index)]


def leading(leader: type[Leader]) -> Kit:
    """Return a kit whose shards use this leader."""

    class Shard(ReplicatedShard):
        def make_leader(self) -> Leader:
            made = super().make_leader()
            made.__class__ = leader
            return made

    return Kit(shard=Shard)


def following(follower: type[Follower]) -> Kit:
    """Return a kit whose sites and shards use this follower."""

    class Shard(ReplicatedShard):
        def make_follower(
            self, position: LogPosition, producers: Producers, parts: tuple[bytes, ...]
        ) -> Follower:
            return follower(position, producers, parts)

    return Kit(shard=Shard, follower=follower)


# Shards, sites, senders and placements


class NeverStepsDown(ReplicatedShard):
    def step_down(self) -> list[Action]:
        return []

    def _new_term(self, term: Term) -> list[Action]:
        leader = self.leader
        actions = super()._new_term(term)
        self.leader = leader or self.leader
        return actions


class KeepsItsBoot(Site):
    def start_boot(self) -> int:
        return self.rank + 1


class ForgetsParts(Site):
    def make_follower(self, found: Found) -> Follower:
        position = replace(found.position, parts=0, parts_all=0, parts_kind=0)
        return self.world.kit.follower(position, found.producers, ())


class MarksNoTerms(Site):
    def store(self, action: StoreMessage) -> None:
        if isinstance(decode(action.data), Term):
            self.chains.append(action.mark.chain)
        else:
            super().store(action)


class ReportsWhatItRead(Site):
    def synced_position(self, shard: ReplicatedShard) -> int:
        return shard.position.sequence


class AcknowledgesWhatTheLogStored(Site):
    def log_has_stored(self, data: bytes) -> None:
        if self.shard is None or self.shard.leader is None:
            return
        for frozen in self.shard.leader._outbox:  # noqa: SLF001 -- what is broken here
            if frozen.data == data:
                calls = [one for one in frozen.waiting if one.kind is Waits.CALL]
                frozen.waiting[:] = [one for one in frozen.waiting if one not in calls]
                self.act([CallStored(one.request) for one in calls])


class ShowsTheOutbox(Site):
    def visible_rows(self) -> list[Row]:
        rows = list(self.rows)
        if self.shard is not None and self.shard.leader is not None:
            outbox = self.shard.leader._outbox  # noqa: SLF001 -- what is broken here
            rows += [("row", one.index) for one in outbox if one.kind is MessageKind.ROWS]
        return rows


class EternalLease(Lease):
    def may_serve(self, now_us: int) -> bool:
        return True


class NeverFallsSilent(Site):
    def start(self) -> None:
        super().start()
        self.lease = EternalLease()


class OneRefusalSettlesAll(Sender):
    def refused(self, number: int, request: int) -> None:
        if number in self._open:
            self._open[number].clear()


def trim_above_some(placement: ShardSites, **facts: Any) -> ShardSites | None:
    """Plan a trim by the highest synced position."""
    below = min(max(facts["synced"][site] for site in placement.insync) + 1, facts["last"])
    return replace(placement, trim=below) if below > placement.trim else None


def join_at_once(
    placement: ShardSites, site: str, status: FollowerStatus, **facts: Any
) -> ShardSites | None:
    """Join whatever the position is."""
    if site in placement.insync:
        return None
    members = placement.replicas | {site}
    return replace(placement, replicas=members, insync=placement.insync | {site})


def mutation(rule: str, how: str, kit: Kit, seed: int, **more: Any) -> Mutation:
    return Mutation(rule=rule, how=how, kit=kit, seed=seed, plan=more)


def remove_at_once(placement: ShardSites, leader: str, alive: frozenset[str]) -> ShardSites | None:
    """Remove what is not wanted, whether the wanted sites are in sync or not."""
    gone = sorted(placement.replicas - placement.wanted - {leader}) if placement.wanted else []
    return remove(placement, gone[0]) if gone else step(placement, leader, alive)


class LeadsWhenAsked(Site):
    def take_lead(self, shard: ReplicatedShard) -> None:
        shard.leader = shard.make_leader()
        super().take_lead(shard)


MUTATIONS = [
    mutation(
        "a record of an older term never counts",
        "it is judged as of this term",
        following(CountsOldTerms),
        0,
    ),
    mutation("only index + 1 counts", "any index counts", following(CountsAnyIndex), 0),
    mutation(
        "only the first TERM of a number counts",
        "a second one counts too",
        following(CountsSecondTerm),
        0,
    ),
    mutation("a gap is never skipped", "the next message is taken", following(SkipsGaps), 0),
    mutation("a damaged message is never skipped", "it is ignored", following(SkipsDamage), 0),
    mutation(
        "a record on another chain stops the site",
        "any chain counts",
        following(CountsAnyChain),
        177,
        damage="altered",
    ),
    mutation(
        "a message on another root stops the site",
        "any root counts",
        following(CountsAnyRoot),
        1140,
        damage="cut",
    ),
    mutation(
        "a term that is too high stops the site",
        "it is ignored",
        following(IgnoresTermsAhead),
        27,
        damage="cut",
    ),
    mutation(
        "a record whose leader counted more stops the site",
        "`seen` is not compared",
        following(IgnoresSeen),
        254,
        damage="cut",
    ),
    mutation(
        "a TERM drops unfinished parts", "they are kept", following(KeepsPartsOfOldTerms), 124
    ),
    mutation(
        "a closed producer is never forgotten",
        "a TERM forgets it",
        following(ForgetsClosedProducers),
        50,
    ),
    mutation(
        "bytes never change once published",
        "they change when published again",
        leading(ChangesFrozenBytes),
        108,
    ),
    mutation(
        "publish again until it counts", "publish once", leading(NeverPublishesAgain), 5, sites=1
    ),
    mutation(
        "acknowledge what counted in the own tail",
        "acknowledge what was published",
        leading(AcknowledgesWhatItPublished),
        0,
    ),
    mutation(
        "acknowledge what counted in the own tail",
        "acknowledge what the log stored",
        Kit(site=AcknowledgesWhatTheLogStored),
        0,
    ),
    mutation(
        "a repetition is answered when it has counted",
        "from the outbox",
        leading(AnswersRepetitionsFromTheOutbox),
        1,
    ),
    mutation("a repetition is not stored", "it is", leading(StoresRepetitions), 1),
    mutation(
        "a call is taken only behind its previous one", "in any order", leading(IgnoresPrevious), 1
    ),
    mutation(
        "a takeover closes the old producer", "without a FENCE", leading(ClosesWithoutFence), 18
    ),
    mutation(
        "a published FENCE refuses later calls",
        "only a counted one does",
        leading(TakesCallsBehindAFence),
        211,
    ),
    mutation(
        "a question waits for a BARRIER",
        "it is answered at once",
        leading(AnswersQuestionsAtOnce),
        293,
    ),
    mutation("a higher TERM ends the leadership", "the outbox stays", Kit(shard=NeverStepsDown), 0),
    mutation("a restart draws a new boot", "it keeps its boot", Kit(site=KeepsItsBoot), 28),
    mutation(
        "a mark holds unfinished parts", "a restart forgets them", Kit(site=ForgetsParts), 1356
    ),
    mutation("a TERM leaves a mark", "it leaves none", Kit(site=MarksNoTerms), 0),
    mutation(
        "the synced position is that of a mark",
        "that of the last message read",
        Kit(site=ReportsWhatItRead),
        0,
    ),
    mutation("readers see what has counted", "they see the outbox", Kit(site=ShowsTheOutbox), 1),
    mutation(
        "refused: every attempt was refused",
        "one refusal is enough",
        Kit(sender=OneRefusalSettlesAll),
        17,
    ),
    mutation("trim only what all in-sync sites have", "what one has", Kit(trim=trim_above_some), 0),
    mutation(
        "a site joins with the position of a member",
        "with any position",
        Kit(next_placement=join_at_once),
        109,
    ),
    mutation(
        "replicas are added before others are removed",
        "the others are removed at once",
        Kit(step=remove_at_once),
        71,
        moves=True,
    ),
    mutation(
        "a retired producer is refused for ever",
        "it is forgotten",
        following(ForgetsRetiredProducers),
        38,
        moves=True,
    ),
    mutation(
        "a handover is a claim",
        "the site that is asked leads at once",
        Kit(site=LeadsWhenAsked),
        0,
        moves=True,
    ),
    mutation(
        "a site without a lease serves no clients",
        "it goes on",
        Kit(site=NeverFallsSilent),
        20,
        seconds=60.0,
        apart_us=60000000,
    ),
]


def search(one: Mutation, say: Callable[[str], object]) -> None:
    for seed in range(SEEDS_SEARCHED):
        found = one.run(seed)
        if found:
            say(f"{seed:5} | {one.rule} | {one.how} | {found}\n")
            return
    say(f"  --- | {one.rule} | {one.how} | not found\n")


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for each in MUTATIONS:
        if not wanted or any(word in each.rule for word in wanted):
            search(each, sys.stdout.write)
            sys.stdout.flush()
