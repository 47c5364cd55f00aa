"""Rules of replicated transactions, each broken once: what the simulation must find.

`seed` is a run that finds it. After a change of the simulation, find new seeds:

    python -m tests.simulation.broken_transactions

Three rules are not here, because no seed is known that finds them: a term ends only the attempts of
earlier terms (a unit test holds it); a read-only commit and a refusal wait until it is certain that
their site leads (tests/integration/test_replicated_maps.py holds both).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from siltstone.errors import ConflictError, SiltstoneError
from siltstone.store.shard.replicated.kv.calls import CommittedCall, Point
from siltstone.store.shard.replicated.kv.router import CommitRouter
from siltstone.store.shard.replicated.port import NotLeaderError
from siltstone.store.tx.commit.attempts import Admissions, Attempt, AttemptSender, StoredAttempt
from siltstone.store.tx.operations import ANY_TERM, Operations
from tests.simulation.transactions import Change, State, TransactionSite, run
from tests.simulation.world import Violation

SEEDS_SEARCHED = 3_000


class AdmitsAnyTerm(Admissions):
    """It takes an attempt for another term."""

    def admit(self, attempt: Attempt) -> bool:
        return super().admit(replace(attempt, term=self.term))


class AdmitsTwice(Admissions):
    """It takes an attempt that it has taken before."""

    def admit(self, attempt: Attempt) -> bool:
        return attempt.term == self.term


class ForgetsRefusals(Admissions):
    """It takes an attempt that it has refused before it led."""

    def admit(self, attempt: Attempt) -> bool:
        return attempt.term == self.term and super().admit(attempt)


class ForgetsRefusalsSite(TransactionSite):
    admissions_of = ForgetsRefusals


class TriesPastAttempts(TransactionSite):
    """It takes and tries what was sent to it in an earlier term."""

    admissions_of = AdmitsAnyTerm

    def commit_here(self, attempt: Attempt, operations: Operations, then: Any) -> None:
        super().commit_here(replace(attempt, term=self.admissions.term), operations, then)

    def is_past(self, attempt: Attempt, term: int) -> bool:
        return False


class AdmitsTwiceSite(TransactionSite):
    admissions_of = AdmitsTwice


class IgnoresTerms(TransactionSite):
    """It does not refuse a transaction that has read in another term."""

    def judge(
        self, operations: Operations, state: State, term: int
    ) -> CommittedCall | SiltstoneError:
        before = operations.term
        operations.term = ANY_TERM if before == ANY_TERM else term
        floor, self.floor = self.floor, 0
        try:
            return super().judge(operations, state, term)
        finally:
            operations.term, self.floor = before, floor


class IgnoresReads(TransactionSite):
    """It does not compare reads with the writes since."""

    def judge(
        self, operations: Operations, state: State, term: int
    ) -> CommittedCall | SiltstoneError:
        found = super().judge(operations, state, term)
        if isinstance(found, ConflictError) and "has read" in str(found):
            return CommittedCall(state.serial + bool(operations.writes), duplicate=False)
        return found


class ReadsBehind(TransactionSite):
    """It lets a transaction read before this site has what the leader had."""

    def has(self, point: Point) -> bool:
        return True


class TellsWhatIsApplied(TransactionSite):
    """It does not tell of the record that is under way."""

    def point(self) -> Point:
        return Point(self.view.term, self.state().serial)


class ForgetsIds(TransactionSite):
    """The ids of transactions are not in the record."""

    def recorded(self, change: Change) -> Change:
        return replace(change, id="")


class KeepsGroup(TransactionSite):
    """It answers for the record under way as if it had counted when it is deposed."""

    def finish(self, error: SiltstoneError | None = None) -> None:
        super().finish(None if isinstance(error, NotLeaderError) else error)


class NamesNothing(AttemptSender):
    """It does not look for its attempts in the records."""

    def counted(self, stored: Iterable[StoredAttempt]) -> list[StoredAttempt]:
        return []


class BlindRouter(CommitRouter):
    def __init__(self, *args: Any, sender: bytes, **rest: Any) -> None:
        super().__init__(*args, sender=sender, **rest)
        self._sender = NamesNothing(sender)


class TrustfulRouter(CommitRouter):
    """It takes the word of a site that has begun again for the answer to an earlier attempt."""

    def _says_nothing(self, waiting: Any, answer: Any) -> bool:
        waiting.is_repeated = False
        return super()._says_nothing(waiting, answer)


class TrustsAnyAnswer(TransactionSite):
    router_of = TrustfulRouter


class AnswersUnderWay(Admissions):
    """It refuses a copy of an attempt that is under way, or was stored."""

    def answered(self, attempt: Attempt) -> SiltstoneError | int | None:
        known = super().answered(attempt)
        is_taken = attempt.term == self.term and not super().admit(attempt)
        return ConflictError("it was taken") if known is None and is_taken else known


class AnswersUnderWaySite(TransactionSite):
    admissions_of = AnswersUnderWay


class ReadsNoAttempts(TransactionSite):
    router_of = BlindRouter


@dataclass(frozen=True, kw_only=True)
class Broken:
    rule: str
    how: str
    site: type[TransactionSite]
    seed: int

    def run(self, seed: int, *, broken: bool = True) -> str:
        """Return what the run finds, "" for nothing."""
        try:
            run(seed, self.site if broken else TransactionSite)
        except Violation as exc:
            return str(exc)
        return ""


def rule(text: str, how: str, site: type[TransactionSite], seed: int) -> Broken:
    return Broken(rule=text, how=how, site=site, seed=seed)


BROKEN = [
    rule("an attempt is tried only in its term", "in any", TriesPastAttempts, 401),
    rule("an attempt is taken once", "each time it arrives", AdmitsTwiceSite, 346),
    rule("a refused attempt is not taken", "it is, later", ForgetsRefusalsSite, 2492),
    rule("a copy gets the first answer", "a refusal instead", AnswersUnderWaySite, 2),
    rule("a site that led before knows nothing", "it refuses", TrustsAnyAnswer, 384),
    rule("a read of another term conflicts", "it does not", IgnoresTerms, 290),
    rule("a read conflicts with later writes", "it does not", IgnoresReads, 0),
    rule("a replica waits for the leader's serial", "it reads at once", ReadsBehind, 15),
    rule("a read sees the record under way", "only what is applied", TellsWhatIsApplied, 20),
    rule("ids are in the record", "they are not", ForgetsIds, 178),
    rule("a deposed leader has not committed", "it says that it has", KeepsGroup, 39),
    rule("a record ends the attempts that it names", "it does not", ReadsNoAttempts, 53),
]


def search(one: Broken) -> None:
    for seed in range(SEEDS_SEARCHED):
        found = one.run(seed)
        if found:
            sys.stdout.write(f"{seed:5} | {one.rule} | {one.how} | {found}\n")
            return
    sys.stdout.write(f"  --- | {one.rule} | {one.how} | not found\n")


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for each in BROKEN:
        if not wanted or any(word in each.rule for word in wanted):
            search(each)
            sys.stdout.flush()
