from __future__ import annotations

import asyncio
import signal

import pytest

from siltstone.cli.mqtt.running import run_until_signal


async def _nothing() -> None:
    return


async def _forever(said: list[str]) -> None:
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        said.append("goodbye")


async def _interrupted() -> None:
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
    await asyncio.get_running_loop().create_future()


async def _cancelled() -> None:
    raise asyncio.CancelledError


async def _broken() -> None:
    raise BrokenPipeError


def test_a_run_to_the_end_has_status_0() -> None:
    assert run_until_signal(_nothing()) == 0


def test_a_signal_cancels_and_its_number_makes_the_status() -> None:
    said: list[str] = []
    assert (run_until_signal(_forever(said)), said) == (143, ["goodbye"])
    assert run_until_signal(_interrupted()) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_raised_is_passed_on() -> None:
    with pytest.raises(BrokenPipeError):
        run_until_signal(_broken())
    with pytest.raises(asyncio.CancelledError):
        run_until_signal(_cancelled())


@pytest.mark.parametrize("installed", [True, False])
def test_uvloop_is_used_where_it_is_installed(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvloop")
    if not installed:
        monkeypatch.setattr("siltstone.cli.mqtt.running.find_spec", lambda _name: None)
    modules: list[str] = []

    async def main() -> None:
        modules.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    run_until_signal(main())
    assert modules == ["uvloop" if installed else "asyncio"]
