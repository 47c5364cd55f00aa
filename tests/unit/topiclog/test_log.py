from __future__ import annotations

from threading import Event

import pytest

from siltstone.errors import ExistsError, InvalidTopicError, NotFoundError, UsageError
from siltstone.topiclog.log import TopicLogs
from tests.support.topiclog import SMALL, WAIT_SECONDS, LogWorld, offsets_of


def commit(logs: TopicLogs, client: str, topic: str, offset: int) -> None:
    done = Event()
    errors: list[Exception | None] = []

    def hear(error: Exception | None) -> None:
        errors.append(error)
        done.set()

    logs.commit(client, topic, offset, hear)
    assert done.wait(WAIT_SECONDS)
    assert errors == [None]


def send(logs: TopicLogs, topic: str, *values: bytes) -> None:
    logs.log(topic).append(offsets_of(values), b"".join(values)).wait()


def test_topics_commits_and_ends_are_the_same_after_a_restart() -> None:
    world = LogWorld()
    with world.logs() as (logs, _):
        for topic in ("a", "b/c"):
            logs.create_topic(topic)
        send(logs, "a", b"1", b"2")
        commit(logs, "me", "a", 1)
        commit(logs, "me", "a", 2)
    with world.logs() as (logs, database):
        assert logs.topics() == ["a", "b/c"]
        assert database.settings.shards == 2
        assert logs.log("a").bounds() == range(2)
        assert logs.committed("me", "a") == 2
        with pytest.raises(ExistsError):
            logs.create_topic("b/c")


@pytest.mark.parametrize("topic", ["", "+", "a/#", "a\0"])
def test_what_is_no_topic_is_not_created(topic: str) -> None:
    with LogWorld().logs() as (logs, _):
        with pytest.raises(InvalidTopicError):
            logs.create_topic(topic)
        assert logs.topics() == []


def test_commits_are_of_a_client_and_a_topic_that_exist() -> None:
    with LogWorld().logs() as (logs, _):
        logs.create_topic("a")
        with pytest.raises(NotFoundError, match="topic 'b' does not exist"):
            commit(logs, "me", "b", 0)
        with pytest.raises(NotFoundError, match="'me' has not committed an offset for topic 'a'"):
            logs.committed("me", "a")
        with pytest.raises(UsageError, match="offset=1 end=0"):
            commit(logs, "me", "a", 1)
        with pytest.raises(UsageError, match="1 to 1024 bytes"):
            commit(logs, "", "a", 0)


def test_names_of_clients_do_not_meet_however_they_are_spelt() -> None:
    names = ["a", "a/b", "a%2Fb", "+", "#", "ä", "n" * 1024]
    with LogWorld().logs() as (logs, _):
        logs.create_topic("t")
        send(logs, "t", *[b"x"] * len(names))
        for offset, name in enumerate(names):
            commit(logs, name, "t", offset)
        assert [logs.committed(name, "t") for name in names] == list(range(len(names)))


def test_a_commit_behind_the_end_of_a_restored_copy_is_the_end() -> None:
    world = LogWorld()
    with world.logs() as (logs, _):
        logs.create_topic("t")
        send(logs, "t", b"1")
        copy = world.fs.kill_clone()
        send(logs, "t", b"2", b"3")
        commit(logs, "me", "t", 3)
    with LogWorld(fs=copy, engines=world.engines).logs() as (logs, _):
        assert logs.committed("me", "t") == 1


def test_a_topic_takes_over_a_shard_that_a_crash_left_without_one() -> None:
    world = LogWorld()
    with world.store() as store:
        store.create("topics", SMALL)
    with world.logs() as (logs, database):
        logs.create_topic("first")
        assert (logs.topics(), database.settings.shards) == (["first"], 1)
