from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from siltstone.errors import StorageFullError, UsageError
from siltstone.topiclog.server import HubLoopShell, TopicLogServer
from tests.support.builders import PATH


def test_work_in_a_thread_comes_back_to_the_loop_with_what_it_raised() -> None:
    async def run() -> list[Exception | None]:
        loop = asyncio.get_running_loop()
        shell = HubLoopShell(loop)
        heard: asyncio.Queue[Exception | None] = asyncio.Queue()
        error = StorageFullError(PATH)

        def fail() -> None:
            raise error

        shell.in_thread(lambda: None, heard.put_nowait)
        shell.in_thread(fail, heard.put_nowait)
        found = [await heard.get(), await heard.get()]
        assert found == [None, error]
        shell.soon(lambda: heard.put_nowait(None))
        shell.later(0, lambda: heard.put_nowait(error))
        forget = shell.later(0, lambda: heard.put_nowait(ValueError("forgotten")))
        forget()
        assert [await heard.get(), await heard.get()] == [None, error]
        shell.close()
        return found

    asyncio.run(run())


def test_a_thread_that_outlives_the_loop_is_not_told_off() -> None:
    loop = asyncio.new_event_loop()
    shell = HubLoopShell(loop)
    heard: list[str] = []
    shell.soon_from_thread(lambda: heard.append("in time"))
    loop.run_until_complete(asyncio.wait_for(loop.create_task(_one_turn()), 5))
    shell.close()
    loop.close()
    shell.soon_from_thread(lambda: heard.append("too late"))
    assert heard == ["in time"]


async def _one_turn() -> None:
    """Let the loop do what it was told."""


def test_an_address_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async def refuse(*_: object, **__: object) -> None:
            raise OSError(98, "Address already in use")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_server", refuse)
        server = TopicLogServer(cast("Any", None))
        with pytest.raises(UsageError, match=r"h:1: Address already in use"):
            await server.listen("h", 1)
        await server.close()

    asyncio.run(run())


def test_beyond_so_many_connections_the_next_is_ended() -> None:
    async def run() -> None:
        server = TopicLogServer(cast("Any", None), connections_max=1)
        accept = server._accept  # noqa: SLF001 - what asyncio calls
        first, second = accept(), accept()
        ended: list[int] = []
        for number, channel in enumerate((first, second)):
            line = cast("Any", type("Line", (), {})())
            line.abort = lambda number=number: ended.append(number)
            line.is_closing = lambda: False
            channel.connection_made(line)
        passed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(passed.set_result, None)
        await passed
        assert ended == [1]

    asyncio.run(run())
