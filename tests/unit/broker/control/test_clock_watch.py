from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from siltstone.broker.control.alarms import CLOCK, QUIET, Alarms
from siltstone.broker.control.clock_watch import (
    ABSENT,
    AHEAD,
    BACK,
    STAMPED,
    ClockWatch,
    clock_document,
    watch_clock,
)
from siltstone.broker.control.socket import Control, ControlOperations
from siltstone.broker.retained.spilled import whole
from siltstone.clock import GuardedClock, ManualClock, Sighting
from siltstone.errors import ClosedError
from siltstone.manage.verb import Nothing
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from tests.support.builders import NAME
from tests.support.durable_core import DurableCore
from tests.support.durable_desk import DurableDesk, leave
from tests.support.group_core import groups_of

DAY = 86_400.0
DAY_US = 86_400_000_000


def guarded(inner: ManualClock) -> GuardedClock:
    return GuardedClock(inner, jump_seconds=60, confirm_seconds=3600, boot="b")


def test_the_alarm_lasts_as_long_as_the_clock_is_not_believed() -> None:
    inner, alarms = ManualClock(), Alarms()
    clock = guarded(inner)
    texts = []
    for seconds in (0, 100, -100, -100, 100):
        inner.jump(seconds)
        watch_clock(alarms, clock)
        texts.append(alarms.text(CLOCK))
    assert texts == [QUIET, AHEAD, QUIET, BACK, QUIET]


def test_the_alarm_tells_of_a_time_off_and_of_rows_stamped_ahead() -> None:
    inner, alarms = ManualClock(), Alarms()
    clock = guarded(inner)
    seen = Sighting(time_us=inner.now_us() - 3 * DAY_US)
    clock.resume(seen)
    newest = {"a": inner.now_us() + 60_000_000, "b": inner.now_us() + 61_000_000}
    watch_clock(alarms, clock, newest)
    assert alarms.text(CLOCK) == ABSENT
    clock.confirm()
    watch_clock(alarms, clock, newest)
    assert alarms.text(CLOCK) == STAMPED
    watch_clock(alarms, clock, {"a": newest["a"]})
    assert alarms.text(CLOCK) == QUIET


def test_the_document_tells_what_is_held_and_for_how_long() -> None:
    inner = ManualClock()
    clock = guarded(inner)
    inner.jump(3 * DAY)
    clock.now_us()
    inner.advance(600)
    assert clock_document(clock.state(), {NAME: 5}, clock.jump_us) == {
        "state": "ahead",
        "text": AHEAD,
        "store_time_us": inner.now_us() - 3 * DAY_US,
        "wall_clock_us": inner.now_us(),
        "ahead_seconds": 3 * DAY,
        "absent_seconds": 0.0,
        "held": True,
        "held_for_seconds": 600.0,
        "believed_in_seconds": 3000.0,
        "holds": ["timestamps", "retention", "expiry"],
        "newest_row_us": {NAME: 5},
    }


class Watched:
    """A watch over a core, which is asked as the command line asks."""

    def __init__(self) -> None:
        self.core = DurableCore(boot="b")
        core = self.core
        self.desk = DurableDesk(core)
        self.watch = ClockWatch(core.store, core.broker, core.guarded)
        control = Control(core.broker, core.durables, groups_of(core), core.real.feed_source())
        self.watch.come_back = control.come_back

    def ask(self, do: str, **fields: Any) -> Any:
        """Send a request; return the answer when all that follows from it is done."""
        desk = ControlOperations(self.core.broker, self.watch.deeds)
        line = json.dumps({"do": do, **fields}).encode()

        async def run() -> bytes:
            task = asyncio.ensure_future(desk.answer(line))
            while not task.done() or self.core.guarded.went_back:
                self.core.run()
                await asyncio.wait([task], timeout=0.001)
            await self.watch.look()
            return task.result()

        return json.loads(asyncio.run(run()))


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.core.close()


def test_a_jump_that_is_confirmed_is_followed_at_once(watched: Watched) -> None:
    watched.core.disk.clock.jump(3 * DAY)
    assert watched.ask("clock-status")["ok"]["state"] == "ahead"
    assert watched.core.broker.alarms.text(CLOCK) == AHEAD
    confirmed = watched.ask("clock-confirm")["ok"]
    assert (confirmed["state"], confirmed["store_time_us"]) == ("ok", watched.core.clock.now_us())
    assert watched.core.broker.alarms.text(CLOCK) == QUIET
    seen = watched.core.store.last_seen()
    assert seen is not None
    assert seen.time_us == watched.core.clock.now_us()


def test_what_was_left_later_than_now_was_left_now(watched: Watched) -> None:
    core = watched.core
    core.disk.clock.jump(3 * DAY)
    core.guarded.confirm()
    leave(watched.desk.come("s", session_expiry_interval=30))
    watched.desk.publish("r", "kept", retain=True, message_expiry_interval=30)
    later_us = core.clock.now_us()
    assert watched.desk.saved("s").away_since_us == later_us
    core.disk.clock.jump(-3 * DAY)
    watched.ask("clock-confirm")
    now_us = later_us - 3 * DAY_US
    assert watched.desk.saved("s").away_since_us == now_us
    message = whole(*core.broker.retained.all())
    assert (message.stored_us, message.expires_us) == (now_us, now_us + 30_000_000)
    assert not core.guarded.went_back
    watched.desk.wait(32)
    assert (core.archive.count(), core.broker.retained.sweep(10)) == (0, 1)


def test_times_restart_when_the_clock_is_believed_and_not_before(watched: Watched) -> None:
    core = watched.core
    core.disk.clock.jump(3 * DAY)
    core.guarded.confirm()
    core.real.append([Row("t", b"ahead")]).wait()
    core.disk.clock.jump(-3 * DAY)
    assert "the clock is not trusted yet" in watched.ask("clock-reset", database=NAME)["error"]
    assert watched.ask("clock-confirm")["ok"]["state"] == "stamped"
    assert watched.ask("clock-reset", database=NAME) == {"ok": 1}
    assert watched.ask("clock-status")["ok"]["state"] == "ok"
    assert "database 'none' does not exist" in watched.ask("clock-reset", database="none")["error"]
    assert "lacks" in watched.ask("clock-reset")["error"]


def test_the_time_is_noted_every_minute(watched: Watched) -> None:
    core = watched.core
    core.disk.clock.advance(59)
    asyncio.run(watched.watch.look())
    before = core.store.last_seen()
    core.disk.clock.advance(1)
    asyncio.run(watched.watch.look())
    after = core.store.last_seen()
    assert after is not None
    assert (after.time_us, after == before) == (core.clock.now_us(), False)


def test_a_store_that_is_being_closed_leaves_the_alarm_as_it_is(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: Store) -> dict[str, int]:
        raise ClosedError("the database is closed")

    watched.core.disk.clock.jump(3 * DAY)
    asyncio.run(watched.watch.look())
    assert watched.core.broker.alarms.text(CLOCK) == AHEAD
    watched.core.disk.clock.advance(60)
    monkeypatch.setattr(Store, "newest_us", closed)
    asyncio.run(watched.watch.look())
    assert watched.core.broker.alarms.text(CLOCK) == AHEAD
    seen = watched.core.store.last_seen()
    assert seen is not None
    assert seen.time_us == watched.core.guarded.now_us()


def test_the_clock_is_saved_by_one_at_a_time(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A save waits here until another one is here too, which must not come.
    both = Barrier(2)
    ended: list[bool] = []

    def note_time(_: Store) -> None:
        with suppress(BrokenBarrierError):
            both.wait(0.05)
            ended.append(False)
        ended.append(True)

    monkeypatch.setattr(Store, "note_time", note_time)

    async def run() -> None:
        confirm = watched.watch.deeds["clock-confirm"]
        await asyncio.gather(confirm(Nothing()), confirm(Nothing()))

    asyncio.run(run())
    assert ended == [True, True]


def test_a_broker_that_believes_its_clock_has_nothing_to_confirm() -> None:
    core = DurableCore()
    watch = ClockWatch(core.store, core.broker, core.clock)
    desk = ControlOperations(core.broker, watch.deeds)
    asyncio.run(watch.look())
    answer = json.loads(asyncio.run(desk.answer(b'{"do": "clock-confirm"}')))
    watch.close()
    core.close()
    assert answer == {"error": "this broker always trusts its clock: there is nothing to confirm"}
