from __future__ import annotations

from dataclasses import replace

from siltstone.broker.sessions.startup import begin_run, keep_sessions
from siltstone.broker.settings.storage import StoreRule
from siltstone.errors import PoisonedError
from siltstone.mqtt.packets import Disconnect
from siltstone.mqtt.reason import Reason
from siltstone.session.archive.records import SavedGroup, SavedSession
from tests.support.archive_builders import GROUP, ArchiveWorld
from tests.support.broker_core import Core
from tests.support.durable_core import DurableCore
from tests.support.group_core import group_core, join, make_core, publish, values

CONNECTED = SavedSession(client_id="a", connected=True)
FULL = replace(GROUP, empty_since_us=None)


def test_each_run_has_the_next_number() -> None:
    with ArchiveWorld() as world:
        assert [begin_run(world.archive, world.clock) for _ in range(3)] == [1, 2, 3]


def test_who_was_connected_and_groups_that_had_members_are_away_from_the_start_on() -> None:
    with ArchiveWorld() as world:
        groups = [FULL, replace(FULL, name="h"), replace(GROUP, name="i")]
        world.archive.create(CONNECTED)
        for group in groups:
            world.archive.create_groups([group])
        world.clock.advance(60)
        begin_run(world.archive, world.clock)
        now_us = world.clock.now_us()
        assert world.archive.peek("a") == replace(
            CONNECTED, connected=False, away_since_us=now_us, unclean=True
        )
        found: list[SavedGroup | None] = [
            world.archive.peek_group(group.name, group.filter) for group in groups
        ]
        assert [group and group.empty_since_us for group in found] == [
            now_us,
            now_us,
            GROUP.empty_since_us,
        ]


def test_a_start_that_is_cut_short_loses_nobody() -> None:
    with ArchiveWorld() as world:
        for client_id in ("a", "b"):
            world.archive.create(replace(CONNECTED, client_id=client_id))
        world.archive.create_groups([FULL])
        # The run is counted, and one of the sessions is marked.
        world.archive.begin_run()
        world.archive.mark_away(["a"], 1)
        archive = world.restart()
        begin_run(archive, world.clock)
        assert [(each.client_id, each.connected) for each in archive.list()] == [
            ("a", False),
            ("b", False),
        ]
        group = archive.peek_group(FULL.name, FULL.filter)
        assert group is not None
        assert group.empty_since_us == world.clock.now_us()


def test_a_broker_that_keeps_sessions_knows_what_those_that_are_away_miss() -> None:
    core = make_core(rules=[StoreRule(filter="t/#", store="offline")])
    join(core, "a", "t/1").drop()
    core.run()
    core = core.crash()
    assert core.broker.interest.of(b"t/1") == (True, True)
    publish(core, "1")
    assert core.stored() == [b"1"]
    core.close()


def test_a_session_that_cannot_be_kept_ends_with_its_connection() -> None:
    with group_core() as core:
        wire = join(core, "a", "t/#")
        session = core.broker.registry.sessions["a"]
        assert session.durable is not None
        session.durable.broken(PoisonedError("a sync failed"))
        core.run()
        [packet] = wire.take()
        assert isinstance(packet, Disconnect)
        assert packet.reason is Reason.UNSPECIFIED_ERROR


def test_a_server_begins_one_more_run_over_its_store() -> None:
    core = DurableCore(session_expiry_max=100)
    broker = Core(session_expiry_max=100).broker
    keep_sessions(core.store, broker, core.real, core.clock)
    assert broker.durables is not None
    assert broker.durables.run == core.durables.run + 1
    core.close()


def test_a_kept_session_gets_what_came_while_its_broker_was_down() -> None:
    core = make_core()
    join(core, "a", "t/#").drop()
    core.run()
    core = core.crash()
    publish(core, "1")
    assert values(core.connect("a", clean_start=False, session_expiry_interval=60)) == ["1"]
    core.close()
