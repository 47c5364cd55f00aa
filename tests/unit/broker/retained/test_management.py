from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from siltstone.broker.control.socket import ControlOperations
from siltstone.broker.retained.management import STEP, RetainedManagement, until_stored
from siltstone.broker.retained.spilled import whole
from siltstone.errors import PoisonedError
from tests.support.broker_core import Core


def ask(core: Core, do: str, error: Exception | None = None, **fields: Any) -> Any:
    """Send a request; the disk is done, or fails, while it is waited for."""
    desk = ControlOperations(core.broker, RetainedManagement(core.broker).deeds)

    async def run() -> bytes:
        task = asyncio.ensure_future(desk.answer(json.dumps({"do": do, **fields}).encode()))
        while not task.done():
            while core.retained_log.pending:
                core.retained_log.settle(error)
            core.run()
            await asyncio.wait([task], timeout=0.001)
        return task.result()

    return json.loads(asyncio.run(run()))


def filled(count: int = 3) -> Core:
    core = Core()
    client = core.connect("c")
    for number in range(count):
        client.publish(f"a/{number}", "x", 0, retain=True)
    client.publish("b", "x", 0, retain=True)
    core.retained_log.automatic = False
    return core


@pytest.mark.parametrize("count", [0, 3, STEP + 1])
def test_the_messages_of_a_filter_are_cleared_and_no_others(count: int) -> None:
    core = filled(count)
    assert ask(core, "count-retained", filter="a/#") == {"ok": count}
    assert ask(core, "clear-retained", filter="a/#") == {"ok": count}
    assert [whole(message).topic for message in core.broker.retained.all()] == [b"b"]
    assert core.retained_log.rows[count + 1 :] == [
        (f"a/{name}".encode(), b"") for name in sorted(map(str, range(count)))
    ]
    assert ask(core, "clear-retained", filter="a/#") == {"ok": 0}


def test_nothing_is_published_by_clearing() -> None:
    core = filled()
    watcher = core.connect("w")
    watcher.subscribe("#", retain_handling=2)
    ask(core, "clear-retained", filter="#")
    assert (watcher.take(), core.database.rows[4:]) == ([], [])


def test_values_of_the_broker_itself_are_not_cleared() -> None:
    core = filled()
    core.broker.retained.put_volatile(b"$SYS/broker/uptime", b"1")
    assert ask(core, "count-retained", filter="$SYS/#") == {"ok": 0}
    assert ask(core, "clear-retained", filter="$SYS/#") == {"ok": 0}
    assert core.broker.retained.get(b"$SYS/broker/uptime", 0) is not None


def test_other_work_runs_before_the_next_step_though_nothing_is_waited_for() -> None:
    async def run() -> list[str]:
        events: list[str] = []
        asyncio.get_running_loop().call_soon(events.append, "other work")
        await until_stored(Core().broker, None)
        return events

    assert asyncio.run(run()) == ["other work"]


def test_a_disk_that_fails_is_told_and_the_messages_stay() -> None:
    core = filled()
    answer = ask(core, "clear-retained", PoisonedError("a sync failed"), filter="#")
    assert answer == {"error": "a sync failed", "failed": True, "kind": "PoisonedError"}
    assert len(core.broker.retained) == 4


@pytest.mark.parametrize(
    ("fields", "kind"), [({}, None), ({"filter": "a/#/b"}, "InvalidTopicError")]
)
def test_a_wrong_request_is_told_as_such(fields: dict[str, Any], kind: str | None) -> None:
    answer = ask(filled(), "clear-retained", **fields)
    assert ("failed" in answer, answer.get("kind")) == (False, kind)
