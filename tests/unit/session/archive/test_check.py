from __future__ import annotations

import pytest

from siltstone.session.archive.check import archive_problems
from siltstone.session.archive.keys import SessionKeys, away_topic, due_topic, word
from tests.support.archive_builders import GROUP, SECOND_US, WHOLE, ArchiveWorld, away

KEYS = SessionKeys("c")


def problems(world: ArchiveWorld) -> list[str]:
    return sorted(archive_problems(world.database.read))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_sound_archive_has_no_problems(shards: int) -> None:
    with ArchiveWorld(shards=shards) as world:
        assert problems(world) == []
        world.archive.begin_run()
        world.archive.create_many([WHOLE, *(away(f"c{n}", "a", f"b/{n}") for n in range(5))])
        world.archive.create_groups([GROUP])
        assert problems(world) == []


@pytest.mark.parametrize(
    ("topic", "value", "expected"),
    [
        (
            KEYS.state,
            None,
            ["a row of nothing that is kept", "counts +1"],
        ),
        (KEYS.state, b"\x01", ["is cut short"]),
        ("session/other/progress", b"", ["a row of nothing that is kept"]),
        (due_topic(2 * SECOND_US, "expiry", "c"), None, ["missing, it would not be found"]),
        (due_topic(3 * SECOND_US, "expiry", "c"), b"c", ["nothing is to be found there"]),
        ("connected/c", b"c", ["nothing is to be found there"]),
        (away_topic(word("a"), 1), None, ["counts -1"]),
        (away_topic(word("a"), 2), (1).to_bytes(8, "big") + b"a", ["counts +1"]),
        ("count/sessions", (7).to_bytes(8, "big"), ["counts +6"]),
        ("count/groups", (1).to_bytes(8, "big"), ["counts +1"]),
    ],
)
def test_what_does_not_follow_from_the_sessions_is_told(
    topic: str, value: bytes | None, expected: list[str]
) -> None:
    with ArchiveWorld() as world:
        world.archive.create(away("c", "a", since=1, expiry=1))
        with world.database.transaction() as tx:
            if value is None:
                tx.delete(topic)
            else:
                tx.write(topic, value)
        found = problems(world)
        assert all(any(part in problem for problem in found) for part in expected), found
        assert len(found) >= len(expected)


def test_a_state_under_the_wrong_name_is_told() -> None:
    with ArchiveWorld() as world:
        world.archive.create(away("c"))
        value = world.database.get(KEYS.state)
        assert value is not None
        with world.database.transaction() as tx:
            tx.write("session/other/state", value)
        assert "'session/other/state': the state has a key that does not belong to it" in problems(
            world
        )
