"""What holds rows of the store, and what does not; how the space comes back."""

from __future__ import annotations

import pytest

from siltstone.broker.control.pins import Pins
from siltstone.broker.control.reclaimer import QUIET_SECONDS, Reclaimer
from siltstone.broker.deliver.feeds import SessionFeeds
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.sessions.groups import StoredShareGroups
from siltstone.broker.settings.storage import StoreRule
from siltstone.session.archive.move import find_place, move_session
from siltstone.session.archive.store import SessionArchive
from siltstone.store.slab.marks import write_tiered
from siltstone.store.slab.retention import RECLAIM_SEAL_BYTES
from tests.support.builders import NAME, PATH
from tests.support.durable_desk import DurableDesk, Got, consume, durable_desk, leave, news
from tests.support.group_core import GROUP, come, join
from tests.support.group_core import consume as consume_lent

PASSES = 3


def reclaimer(desk: DurableDesk) -> Reclaimer:
    found = desk.core.broker.reclaimer
    assert found is not None
    return found


def sealed(desk: DurableDesk) -> list[str]:
    return [str(slab.slab) for slab in desk.core.real.slabs() if slab.state != "current"]


def seal(desk: DurableDesk) -> list[str]:
    """Seal, and return which slabs are left after some looks."""
    desk.core.real.seal()
    desk.wait(PASSES)
    return sealed(desk)


def held_by(desk: DurableDesk) -> str:
    return reclaimer(desk).values()[b"store/held by"]


def test_a_backlog_holds_its_slab_until_it_is_acknowledged() -> None:
    with durable_desk(reclaim="delivered") as desk:
        wire = desk.come()
        wire.subscribe("t", qos=1)
        leave(wire)
        desk.publish("t", "1", "2")
        assert seal(desk) == ["0/1"]
        assert (held_by(desk), reclaimer(desk).held_rows) == ("session s", 2)
        wire = desk.come()
        assert news(wire) == [Got("1"), Got("2")]
        desk.wait(PASSES)
        assert sealed(desk) == ["0/1"]
        leave(wire)
        wire = desk.come()
        assert consume(wire) == [Got("1", dup=True), Got("2", dup=True)]
        desk.wait(PASSES)
        assert sealed(desk) == []
        values = reclaimer(desk).values()
        assert values[b"store/held by"] == ""
        assert values[b"store/reclaimed/messages"] == "2"
        assert int(values[b"store/reclaimed/bytes"]) > 0


def test_it_rests_while_the_setting_is_off() -> None:
    with durable_desk(reclaim="delivered") as desk:
        desk.core.real.configure(reclaim="none")
        desk.publish("t", "1")
        assert seal(desk) == ["0/1"]
        desk.core.real.configure(reclaim="delivered")
        desk.wait(PASSES)
        assert sealed(desk) == []


def test_nothing_is_dropped_where_the_database_does_not_say_so() -> None:
    with durable_desk() as desk:
        desk.publish("t", "1")
        assert seal(desk) == ["0/1"]
        assert desk.core.broker.reclaimer is None


def test_without_sessions_nothing_is_needed() -> None:
    with durable_desk(reclaim="delivered") as desk:
        desk.publish("t", "1")
        assert seal(desk) == []


def test_a_message_of_qos_2_is_held_until_its_handshake_has_begun() -> None:
    with durable_desk(reclaim="delivered") as desk:
        wire = desk.come()
        wire.subscribe("t", qos=2)
        desk.publish("t", "1", qos=2)
        assert news(wire) == [Got("1", 2)]
        assert seal(desk) == ["0/1"]
        desk.crash()
        wire = desk.come()
        desk.wait(PASSES)
        assert sealed(desk) == ["0/1"]
        assert consume(wire) == [Got("1", 2, dup=True)]
        desk.wait(PASSES)
        assert sealed(desk) == []


@pytest.mark.parametrize("topic", ["other", "t"])
def test_a_session_that_is_away_holds_only_what_is_for_it(topic: str) -> None:
    with durable_desk(reclaim="delivered") as desk:
        wire = desk.come(session_expiry_interval=1000)
        wire.subscribe("t", qos=1)
        leave(wire)
        desk.publish(topic, "1")
        assert seal(desk) == ([] if topic == "other" else ["0/1"])
        desk.publish("t", "2")
        desk.crash()
        wire = desk.come()
        expected = [Got("2")] if topic == "other" else [Got("1"), Got("2")]
        assert consume(wire) == expected
        desk.wait(PASSES)
        assert desk.saved().dropped == 0
        assert sealed(desk) == []


def test_a_session_without_subscriptions_or_of_qos_0_holds_nothing_while_it_is_away() -> None:
    with durable_desk(reclaim="delivered") as desk:
        leave(desk.come("nothing"))
        wire = desk.come("zero")
        wire.subscribe("t", qos=0)
        leave(wire)
        desk.publish("t", "1")
        assert seal(desk) == []
        wire = desk.come("nothing")
        wire.subscribe("t", qos=1)
        desk.publish("t", "2")
        assert consume(wire) == [Got("2")]
        desk.wait(1)
        assert desk.saved("nothing").dropped == 0


def test_a_session_that_expires_holds_nothing_any_more() -> None:
    with durable_desk(reclaim="delivered") as desk:
        wire = desk.come(session_expiry_interval=20)
        wire.subscribe("t", qos=1)
        leave(wire)
        desk.publish("t", "1")
        assert seal(desk) == ["0/1"]
        desk.wait(25)
        assert sealed(desk) == []


def test_a_message_that_expired_only_by_a_clock_that_is_not_certain_is_held() -> None:
    with durable_desk(reclaim="delivered", boot="one") as desk:
        wire = desk.come()
        wire.subscribe("t", qos=1)
        leave(wire)
        desk.publish("t", "1", message_expiry_interval=60)
        desk.core.real.seal()
        desk.core.store.note_time()
        desk.core.disk.clock.jump(86_400)
        desk.crash(boot="two")
        desk.wait(PASSES)
        assert sealed(desk) == ["0/1"]


def test_connected_sessions_that_rows_pass_by_hold_nothing_though_they_are_saved_late() -> None:
    with durable_desk(reclaim="delivered") as desk:
        wire = desk.come()
        wire.subscribe("other", qos=1)
        desk.wait(2)
        desk.publish("t", "1")
        assert seal(desk) == []
        assert [*desk.saved().position.serials.values()] == [0]
        desk.crash()
        wire = desk.come()
        desk.publish("other", "2")
        assert consume(wire) == [Got("2")]
        desk.wait(1)
        assert desk.saved().dropped == 0


def test_a_share_group_holds_what_it_has_lent_and_what_waits_for_members() -> None:
    with durable_desk(reclaim="delivered", session_expiry_max=1000) as desk:
        wire = join(desk.core, "worker")
        desk.publish("t/1", "1")
        assert seal(desk) == ["0/1"]
        assert held_by(desk) == f"share group {GROUP}"
        wire.drop()
        desk.core.run()
        desk.wait(PASSES)
        assert (sealed(desk), held_by(desk)) == (["0/1"], f"share group {GROUP}")
        desk.crash()
        desk.wait(PASSES)
        assert sealed(desk) == ["0/1"]
        assert consume_lent(come(desk.core, "worker")) == ["1"]
        desk.wait(PASSES)
        assert sealed(desk) == []


def test_a_pin_keeps_everything_and_a_session_that_is_moved_back_finds_it() -> None:
    with durable_desk(reclaim="delivered") as desk:
        wire = desk.come()
        wire.subscribe("t", qos=1)
        desk.publish("t", "1")
        assert consume(wire) == [Got("1")]
        leave(wire)
        release = desk.core.broker.pins.take()
        assert seal(desk) == ["0/1"]
        owned = desk.core.archive.take("s")
        assert owned is not None
        move_session(owned, find_place(desk.core.real.feed_source(), "earliest"))
        owned.save()
        release()
        desk.wait(PASSES)
        assert sealed(desk) == ["0/1"]
        assert consume(desk.come()) == [Got("1")]
        desk.wait(PASSES)
        assert sealed(desk) == []


def test_of_a_database_that_is_tiered_only_what_is_in_the_lake_is_dropped() -> None:
    with durable_desk(reclaim="delivered") as desk:
        directory = PATH / "data" / NAME
        write_tiered(desk.core.disk.fs, directory, {0: 0})
        desk.publish("t", "1")
        assert seal(desk) == ["0/1"]
        write_tiered(desk.core.disk.fs, directory, {0: 1})
        desk.wait(PASSES)
        assert sealed(desk) == []


def test_a_session_that_is_being_made_holds_the_rows_behind_its_beginning() -> None:
    with durable_desk(reclaim="delivered") as desk:
        durables = desk.core.durables
        made: list[object] = []
        durables.make("s", user="", version=5, expiry_seconds=9, then=made.append)
        assert list(durables.beginning.values()) == [{0: 0}]
        desk.core.run()
        assert (len(made), durables.beginning) == (1, {})
        # As long as it is not in the archive, nothing else knows where it begins.
        durables.beginning[7] = {0: 0}
        desk.publish("t", "1")
        assert seal(desk) == ["0/1"]
        del durables.beginning[7]
        desk.wait(PASSES)
        assert sealed(desk) == []


def test_what_all_have_is_sealed_when_no_more_comes_and_given_back() -> None:
    """Policy `offline`: what a session misses is stored, and gone when it has it."""
    offline = (StoreRule(filter="#", store="offline"),)
    value = "x" * (RECLAIM_SEAL_BYTES // 8)
    with durable_desk(reclaim="delivered", rules=offline) as desk:
        wire = desk.come()
        wire.subscribe("t", qos=1)
        leave(wire)
        for _ in range(10):
            desk.publish("t", value)
        before = desk.core.real.size_bytes()
        assert before > RECLAIM_SEAL_BYTES
        wire = desk.come()
        assert consume(wire) == [Got(value)] * 10
        desk.wait(int(QUIET_SECONDS) - 2)
        assert [str(slab.slab) for slab in desk.core.real.slabs()] == ["0/1"]
        desk.wait(2 + PASSES)
        assert [str(slab.slab) for slab in desk.core.real.slabs()] == ["0/2"]
        assert desk.core.real.size_bytes() < before // 4


def test_what_cannot_be_read_is_told_once_and_drops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with durable_desk(reclaim="delivered") as desk:
        desk.publish("t", "1")
        write_tiered(desk.core.disk.fs, PATH / "data" / NAME, {0: 1})
        with desk.core.disk.fs.open(
            PATH / "data" / NAME / "marks" / "tiered", writable=True
        ) as file:
            file.write_at(0, b"damaged")
        assert seal(desk) == ["0/1"]
        told = [each.getMessage() for each in caplog.records]
        assert told.count("reclaim_failed") == 1


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Pins, "is_free"),
        (Durables, "ask"),
        (SessionFeeds, "ends"),
        (StoredShareGroups, "places"),
        (SessionArchive, "sessions_before"),
        (SessionArchive, "peek"),
        (Reclaimer, "_hold"),
        (Reclaimer, "_dropped"),
    ],
)
def test_a_mistake_of_ours_ends_one_look_and_not_those_behind_it(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with durable_desk(reclaim="delivered") as desk:
        wire = desk.come()
        wire.subscribe("t", qos=1)
        leave(wire)
        desk.publish("u", "1")
        desk.core.real.seal()
        looks = 0

        def fail(*_: object) -> None:
            nonlocal looks
            looks += 1
            raise RuntimeError("on purpose")

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fail)
            desk.wait(PASSES)
        assert 1 <= looks <= PASSES
        desk.wait(PASSES)
        assert sealed(desk) == []
