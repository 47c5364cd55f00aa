"""Topic logs against a naive model: lists of messages, and a dictionary of commits.

Places are taken, filled and given up in any order; the power goes, the process is killed; and
always what was acknowledged is there, in order, under the offsets that were told.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from siltstone.errors import ExistsError, NotFoundError
from siltstone.store.log.check.verify import verify_database
from siltstone.store.segment.writer import Room
from siltstone.store.shard.block_log import BlockLog
from siltstone.topiclog.log import DATABASE, TopicLogs, open_topic_logs
from tests.support.builders import PATH
from tests.support.topiclog import SMALL, LogWorld, all_values, append, fill, taken

TOPICS = st.sampled_from(["a", "a/b", "c"])
VALUES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5)
SIZES = st.sampled_from([1, 100, 9_000, 30_000, 70_000])


class TopicLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = LogWorld()
        self.model: dict[str, list[bytes]] = {}
        self.commits: dict[tuple[str, str], int] = {}
        self.rooms: list[tuple[str, Room]] = []
        self.letter = 0
        self.open()

    def open(self) -> None:
        self.store = self.world.store()
        self.logs: TopicLogs = open_topic_logs(self.store, SMALL)[0]
        self.rooms = []

    def log(self, topic: str) -> BlockLog:
        found = self.logs.log(topic)
        assert isinstance(found, BlockLog)
        return found

    def fresh(self, size: int) -> bytes:
        self.letter = self.letter % 250 + 1
        return bytes([self.letter]) * size

    @rule(topic=TOPICS)
    def create(self, topic: str) -> None:
        try:
            self.logs.create_topic(topic)
        except ExistsError:
            assert topic in self.model
        else:
            assert topic not in self.model
            self.model[topic] = []

    @rule(topic=TOPICS, values=VALUES)
    def send(self, topic: str, values: list[bytes]) -> None:
        if topic in self.model:
            assert append(self.log(topic), *values) == len(self.model[topic])
            self.model[topic] += values

    @rule(topic=TOPICS, size=SIZES)
    def begin(self, topic: str, size: int) -> None:
        if topic in self.model and len(self.rooms) < 5:
            self.rooms.append((topic, taken(self.log(topic), size)))

    @precondition(lambda self: self.rooms)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        topic, room = self.rooms.pop(data.draw(st.integers(0, len(self.rooms) - 1)))
        value = self.fresh(room.size)
        ticket = self.log(topic).append_room(fill(room, value), room)
        assert ticket.wait().first_serial() == len(self.model[topic])
        self.model[topic].append(value)

    @precondition(lambda self: self.rooms)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        topic, room = self.rooms.pop(data.draw(st.integers(0, len(self.rooms) - 1)))
        fill(room, self.fresh(max(1, room.size // 2)))
        self.log(topic).give_up_room(room)

    @rule(topic=TOPICS, client=st.sampled_from(["x", "y"]), data=st.data())
    def commit(self, topic: str, client: str, data: st.DataObject) -> None:
        if topic in self.model:
            offset = data.draw(st.integers(0, len(self.model[topic])))
            told: list[Exception | None] = []
            self.logs.commit(client, topic, offset, told.append)
            self.store.keyvalue("commits").outcome("nothing", key="barrier")
            assert told == [None]
            self.commits[client, topic] = offset

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @rule(seed=st.none() | st.integers(0, 1000))
    def lose_power(self, seed: int | None) -> None:
        rng = None if seed is None else Random(seed)
        disk = self.world.fs.crash_clone(rng)
        self.store.close()
        self.world = LogWorld(fs=disk, engines=self.world.engines)
        self.open()

    @rule()
    def kill(self) -> None:
        disk = self.world.fs.kill_clone()
        self.store.close()
        self.world = LogWorld(fs=disk, engines=self.world.engines)
        self.open()

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.logs.topics() == list(self.model)
        for topic, values in self.model.items():
            log = self.log(topic)
            assert log.bounds() == range(len(values))
            assert all_values(log) == values
            assert log.length(len(values)) == 0
            for client in ("x", "y"):
                try:
                    committed = self.logs.committed(client, topic)
                except NotFoundError:
                    assert (client, topic) not in self.commits
                else:
                    assert committed == self.commits[client, topic]

    def teardown(self) -> None:
        self.store.close()
        place = PATH / "data" / DATABASE
        report = verify_database(self.world.fs, place, repair=False, quarantine=PATH / "quarantine")
        # A place that was being filled at the end is cut off at the next start.
        problems = [finding.problem for finding in report.findings]
        assert [problem for problem in problems if not problem.startswith("torn tail")] == []


@pytest.mark.timeout(120)
def test_topic_logs_answer_as_a_list_of_messages_would() -> None:
    # A failing history is told as it is: to shorten it would take longer than a test may.
    phases = (Phase.reuse, Phase.generate)
    run_state_machine_as_test(
        TopicLogMachine, settings=settings(max_examples=20, stateful_step_count=20, phases=phases)
    )


@pytest.mark.soak
def test_topic_logs_answer_so_over_many_more_histories() -> None:
    run_state_machine_as_test(
        TopicLogMachine, settings=settings(max_examples=2_000, stateful_step_count=40)
    )
