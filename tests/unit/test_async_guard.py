from __future__ import annotations

import asyncio

import pytest

from siltstone.async_guard import contain_async


def test_what_succeeds_is_awaited() -> None:
    done: list[str] = []

    async def act() -> None:
        done.append("act")

    assert asyncio.run(contain_async(act)) is None
    assert done == ["act"]


def test_what_raises_is_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("ours")

    assert isinstance(asyncio.run(contain_async(fail, KeyError)), ValueError)
    [record] = caplog.records
    assert record.exc_info is not None
    assert (record.getMessage(), str(record.exc_info[1])) == ("internal_error", "ours")
    assert "in fail" in caplog.text


def test_an_expected_error_is_returned_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise KeyError("expected")

    assert isinstance(asyncio.run(contain_async(fail, ValueError, LookupError)), KeyError)
    assert caplog.records == []


def test_a_cancellation_that_nobody_asked_for_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise asyncio.CancelledError

    assert isinstance(asyncio.run(contain_async(fail)), asyncio.CancelledError)
    assert [record.getMessage() for record in caplog.records] == ["internal_error"]


def test_who_is_cancelled_meanwhile_ends() -> None:
    ended: list[str] = []

    async def last() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("last")

    async def play() -> None:
        began = asyncio.Event()

        async def act() -> None:
            began.set()
            await last()

        task = asyncio.create_task(contain_async(act))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert ended == ["last"]
