"""The tier job as a child process of the broker: started, started again, and stopped with it.

The child reads its standard input, which the broker never writes to. If the broker is killed, the
input ends, and the child ends after its batch.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.logs import log

_LOG: Final = logging.getLogger(__name__)
PAUSE_FIRST: Final = 1.0
PAUSE_MAX: Final = 60.0
# A job that has run for so long has started well.
_STEADY_SECONDS: Final = 60.0
# The longest time that a batch may take to end when the broker stops.
STOP_SECONDS: Final = 20.0


def tier_command(settings: BrokerSettings) -> list[str]:
    """Return the command of the child process."""
    tier = settings.tier
    return [
        *(sys.executable, "-P", "-m", "siltstone.cli.main", "pipeline", "tier"),
        *("--data", settings.data, "--database", settings.storage.database, "--continuous"),
        *("--freshness", f"{tier.freshness:.3f}s", "--keep", str(tier.keep_hours)),
        *("--master", tier.master, "--memory", tier.memory, "--supervised"),
    ]


def next_pause(before: float, ran: float) -> float:
    """Return the pause before a job is started again: longer after each job that ended soon."""
    return PAUSE_FIRST if ran >= _STEADY_SECONDS else min(PAUSE_MAX, before * 2)


async def supervise(command: Sequence[str], *, pause: float = PAUSE_FIRST) -> None:
    """Run a command, and run it again whenever it ends, until this task is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        status, said = await _run(command)
        log(
            _LOG,
            logging.WARNING,
            "tier_job_ended",
            status=status,
            error=said,
            retry_seconds=pause,
        )
        await asyncio.sleep(pause)
        pause = next_pause(pause, loop.time() - began)


async def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a command to its end; return its status and the last line of its errors."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        # Ctrl-C is meant for the broker, which stops the job.
        start_new_session=True,
    )
    log(_LOG, logging.INFO, "tier_job_started", pid=process.pid)
    assert process.stderr is not None, "the errors of the job are read"
    said = ""
    try:
        while line := await process.stderr.readline():
            said = line.decode(errors="replace").strip() or said
        return await process.wait(), said.removeprefix("siltstone: ")
    except asyncio.CancelledError:
        await _stop(process)
        raise


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Let a job end its batch; kill it if that takes too long."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.communicate(), STOP_SECONDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    log(_LOG, logging.INFO, "tier_job_stopped", status=process.returncode)
