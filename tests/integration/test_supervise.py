"""A supervised process: started again when it ends, and ended with the task that supervises it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from siltstone.cli.pipeline.supervise import supervise
from tests.support.broker_process import clean_environment

# It notes its start, and waits for the end of its input, as a tier job does.
WAITS = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (Path(sys.argv[1] + ".ended").touch(), sys.exit(0)))
Path(sys.argv[1]).touch()
sys.stdin.buffer.read()
"""
FAILS = """
import sys
from pathlib import Path
with Path(sys.argv[1]).open("a") as file:
    file.write("x")
sys.exit("siltstone: no Java")
"""
# It stops as `siltstone pipeline tier --supervised` does.
STOPS = """
import sys
from pathlib import Path
from siltstone.cli.pipeline.stopping import stopping
with stopping(listens=True) as stop:
    stop.watch(sys.stdin.fileno())
    Path(sys.argv[1]).touch()
    stop.wait(60)
    sys.exit(0 if stop.asked else 1)
"""


def run_until(mark: Path, size: int, program: str, *, pause: float = 1.0) -> None:
    """Supervise a program until its mark has a size; then cancel the supervisor."""

    async def run() -> None:
        job = asyncio.create_task(
            supervise([sys.executable, "-c", program, str(mark)], pause=pause)
        )
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(None, _has, mark, size):
            await asyncio.wait([job], timeout=0.01)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    asyncio.run(run())


def _has(mark: Path, size: int) -> bool:
    return mark.exists() and mark.stat().st_size >= size


def test_a_job_ends_in_order_when_its_supervisor_is_cancelled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run_until(mark, 0, WAITS)
    assert mark.with_suffix(".ended").exists()


def test_a_job_that_fails_is_started_again_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_until(tmp_path / "mark", 2, FAILS, pause=0.01)
    ended = [item.__dict__["facts"] for item in caplog.records if item.message == "tier_job_ended"]
    assert ended[0] == {"status": 1, "error": "no Java", "retry_seconds": 0.01}


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_job_ends_in_order_by_a_signal_and_when_the_broker_is_gone(
    tmp_path: Path, is_killed: bool
) -> None:
    mark = tmp_path / "mark"
    job = subprocess.Popen(
        [sys.executable, "-c", STOPS, str(mark)], stdin=subprocess.PIPE, env=clean_environment()
    )
    assert job.stdin is not None
    while not _has(mark, 0):
        with suppress(subprocess.TimeoutExpired):
            job.wait(0.01)
        assert job.returncode is None
    if is_killed:
        job.stdin.close()
    else:
        job.terminate()
    assert job.wait(20) == 0
    job.stdin.close()
