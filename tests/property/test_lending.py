"""Share groups against a naive model: every row ends once with somebody, and none is forgotten."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from siltstone.session.durable.progress import SessionProgress
from siltstone.session.lending import (
    LEAST_LOADED,
    RANDOM,
    ROUND_ROBIN,
    STICKY,
    STICKY_TOPIC,
    Lending,
)
from tests.support.lent_rows import acknowledge, member_of, outbox_of, rows_of

STRATEGIES = (LEAST_LOADED, ROUND_ROBIN, RANDOM, STICKY, STICKY_TOPIC)
TOPICS = (b"a", b"b", b"c")
TIMEOUT = 10.0


class Group(RuleBasedStateMachine):
    """A group that is taken apart and put together again, with rows coming all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.lending = Lending(LEAST_LOADED, SessionProgress())
        self.now = 0.0
        self.next_serial = 0
        # What was acknowledged by whom it was lent to last.
        self.done: set[int] = set()

    @rule(strategy=st.sampled_from(STRATEGIES))
    def change_strategy(self, strategy: str) -> None:
        self.lending.strategy = strategy

    @rule(window=st.integers(1, 4))
    def join(self, window: int) -> None:
        member = member_of(outbox_of(window=window))
        self.lending.join(member, self.now)
        if len(self.lending.members) == 1:
            self._come_by_again()

    def _come_by_again(self) -> None:
        """Read on where the group stands, as a feed would that begins there."""
        position = self.lending.progress.position().get(0, 0)
        done = self.lending.progress.done().get(0, [])
        self.lending.progress.start(0, position, done)
        self._receive(position, self.next_serial - position)

    @rule(count=st.integers(1, 6))
    def rows_come(self, count: int) -> None:
        if self.lending.members:
            self._receive(self.next_serial, count)
            self.next_serial += count

    def _receive(self, first: int, count: int) -> None:
        topics = [TOPICS[serial % len(TOPICS)] for serial in range(first, first + count)]
        self.lending.receive(rows_of(first, topics), None, self.now, 0)
        self.lending.progress.lane(0).pass_by(first + count)

    @rule(number=st.integers(0, 9), count=st.integers(1, 5))
    def member_acknowledges(self, number: int, count: int) -> None:
        if self.lending.members:
            member = self.lending.members[number % len(self.lending.members)]
            sent = [each for each in member.outbox.deliveries() if each.sent][:count]
            # What was revoked is somebody else's by now.
            self.done.update(each.serial for each in sent if each.lane is not None)
            acknowledge(member, count)

    @rule(number=st.integers(0, 9))
    def member_leaves(self, number: int) -> None:
        if self.lending.members:
            member = self.lending.members[number % len(self.lending.members)]
            self.lending.leave(member.outbox, self.now)

    @rule(seconds=st.sampled_from((1.0, 11.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.lending.look_for_stalls(self.now, TIMEOUT)

    def _lent(self) -> list[int]:
        """Return every row that somebody has, with repetitions."""
        return [
            each.serial
            for member in self.lending.members
            for each in [*member.outbox.deliveries(), *member.outbox.waiting()]
            if each.lane is not None
        ]

    @invariant()
    def every_row_is_done_or_with_exactly_one_member(self) -> None:
        if self.lending.members:
            lent = sorted(self._lent())
            assert lent == sorted(set(range(self.next_serial)) - self.done)

    @invariant()
    def the_position_is_the_first_row_that_is_not_done(self) -> None:
        missing = set(range(self.next_serial)) - self.done
        position = self.lending.progress.position().get(0, 0)
        assert position == min(missing, default=self.next_serial)
        above = self.lending.progress.done().get(0, [])
        assert above == sorted(serial for serial in self.done if serial > position)


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
