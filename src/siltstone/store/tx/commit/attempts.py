"""The attempts to commit transactions at the leader of a replicated shard, at both ends.

Each site has one sender for each shard. It numbers its attempts and sends each one to the site that
leads a term, again if there is no answer. The record that stores a transaction names the attempt,
so every site learns from the shared log which attempts were stored. The leader remembers the
answers to attempts that are not stored, and gives them again to copies of these attempts.

Invariants:
- an attempt is admitted at most once, only in its term, and never after it was refused;
- the answer to an attempt that is not stored is remembered until the sender says that the attempt
  has ended, or the term ends;
- an attempt was stored if and only if its record counted. If a higher term counted before that, it
  was not stored, and never will be;
- once a leader takes a later attempt, it never takes an attempt that the sender gave up before. So
  if both attempts have one transaction id, the later one finds the id if the first was stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from siltstone.errors import RetryError, SiltstoneError

# Each attempt names the given-up attempts above the oldest open one, at most this many. A sender
# that has this many begins no other attempt.
GIVEN_UP_MAX: Final = 1000
# The number of answers that a leader remembers for each sender. Of an older one it knows only that
# the attempt is not stored.
ANSWERS_MAX: Final = 1000

# The answer to an attempt that is not stored: the reason of its refusal, or the serial with which
# an earlier attempt with the same transaction id was committed.
Unstored = SiltstoneError | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt. All numbers below `lowest` have ended, and so have those in `given_up`."""

    sender: bytes
    number: int
    term: int
    lowest: int
    given_up: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """A transaction in a record: its attempt, and the serial of the commit."""

    sender: bytes
    number: int
    serial: int


class AttemptSender:
    """The attempts of one site to one shard."""

    def __init__(self, sender: bytes) -> None:
        self.sender = sender
        self._next = 1
        # The attempts without an outcome, with their terms.
        self._open: dict[int, int] = {}
        self._given_up: list[int] = []

    def is_full(self) -> bool:
        """Return whether no attempt may begin, because it could not name all given-up attempts."""
        if len(self._given_up) < GIVEN_UP_MAX:
            return False
        self._forget()
        return len(self._given_up) >= GIVEN_UP_MAX

    def _forget(self) -> None:
        """Forget the given-up attempts below the lowest open one."""
        lowest = min(self._open, default=self._next)
        self._given_up = [each for each in self._given_up if each > lowest]

    def begin(self, term: int) -> Attempt:
        """Return a new attempt for the leader of a term. The caller knows that it is not full."""
        number = self._next
        self._next += 1
        self._open[number] = term
        self._forget()
        return Attempt(
            sender=self.sender,
            number=number,
            term=term,
            lowest=min(self._open),
            given_up=tuple(self._given_up),
        )

    def ended(self, number: int) -> bool:
        """Take the outcome of an attempt; return whether it had none before."""
        return self._open.pop(number, None) is not None

    def give_up(self, number: int) -> None:
        """Record that nothing waits for an attempt any more; it may be stored or not."""
        if self._open.pop(number, None) is not None:
            self._given_up.append(number)

    def counted(self, stored: Iterable[StoredAttempt]) -> list[StoredAttempt]:
        """Record the attempts of a record that counted; return those that were open here."""
        return [each for each in stored if each.sender == self.sender and self.ended(each.number)]

    def counted_term(self, term: int) -> list[int]:
        """Record that a term counted; return the open attempts of earlier terms, which never
        count.
        """
        past = [number for number, of in self._open.items() if of < term]
        for number in past:
            del self._open[number]
        return past


class _Known:
    """The attempts of one sender, as a leader knows them."""

    __slots__ = ("answers", "lowest", "taken", "unstored")

    def __init__(self) -> None:
        self.lowest = 0
        self.taken: set[int] = set()
        # Those that will never be stored.
        self.unstored: set[int] = set()
        # The oldest answer is first.
        self.answers: dict[int, Unstored] = {}


class Admissions:
    """The attempts that a site has taken in the term that it leads, or refused before it led."""

    def __init__(self) -> None:
        self.term = 0
        self._known: dict[bytes, _Known] = {}
        # Attempts for later terms that came before this site has read that it leads.
        self._early: list[Attempt] = []

    def lead(self, term: int) -> None:
        """Take the attempts of another term from now on."""
        self.term = term
        self._known.clear()
        early, self._early = self._early, []
        for attempt in early:
            # Its sender has received a final refusal.
            if self.admit(attempt):
                self.answer(attempt, RetryError("the attempt came before its term"))

    def size(self) -> int:
        """Return the number of attempts that are remembered."""
        return len(self._early) + sum(len(known.taken) for known in self._known.values())

    def answer(self, attempt: Attempt, answer: Unstored) -> None:
        """Remember the answer to an attempt that was admitted, and will never be stored."""
        known = self._known.get(attempt.sender)
        if attempt.term != self.term or known is None or attempt.number < known.lowest:
            return
        known.unstored.add(attempt.number)
        known.answers[attempt.number] = answer
        if len(known.answers) > ANSWERS_MAX:
            del known.answers[next(iter(known.answers))]

    def answered(self, attempt: Attempt) -> Unstored | None:
        """Return the answer to an attempt of this term that is not stored; None for no answer."""
        known = self._known.get(attempt.sender)
        if attempt.term != self.term or known is None:
            return None
        if attempt.number in known.unstored and attempt.number not in known.answers:
            return RetryError("the transaction was not committed, and the reason is forgotten")
        return known.answers.get(attempt.number)

    def admit(self, attempt: Attempt) -> bool:
        """Return whether an attempt may be tried: it is of this term, and was not taken before."""
        if attempt.term != self.term:
            if attempt.term > self.term:
                self._early = [*self._early[-GIVEN_UP_MAX:], attempt]
            return False
        known = self._known.setdefault(attempt.sender, _Known())
        if attempt.lowest > known.lowest:
            known.lowest = attempt.lowest
            known.taken = {number for number in known.taken if number >= known.lowest}
            known.unstored = {number for number in known.unstored if number >= known.lowest}
            kept = [number for number in known.answers if number >= known.lowest]
            known.answers = {number: known.answers[number] for number in kept}
        known.taken.update([number for number in attempt.given_up if number >= known.lowest])
        if attempt.number < known.lowest or attempt.number in known.taken:
            return False
        known.taken.add(attempt.number)
        return True
