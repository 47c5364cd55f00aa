"""The load generator: compiles bench/mqttload.c, runs it, and parses its line of JSON."""

from __future__ import annotations

import json
import shlex
import subprocess
import sysconfig
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent.parent / "mqttload.c"
_PROGRAM: Final = Path("build/mqttload")
# Status 1 means that an expected message never arrived, which its figures show as well.
_ENDED_WELL: Final = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of the generator, with the names of its JSON."""

    acked_per_s: float
    recv_per_s: float
    p50_us: int
    p99_us: int
    max_us: int
    ack_p50_us: int
    ack_p99_us: int
    sent: int
    acked: int
    received: int
    expected: int
    out_of_order: int
    duplicates: int
    pub_s: float
    recv_s: float

    @property
    def lost(self) -> int:
        """The number of acknowledgements and messages that never arrived."""
        return self.sent - self.acked + max(0, self.expected - self.received)


class GeneratorError(Exception):
    """The generator failed, often because the broker closed the connection."""


def build_generator() -> Path:
    """Compile the generator if it is missing or older than its source."""
    program = _PROGRAM.resolve()
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program


def run_load(program: Path, port: int, *, seconds: float, options: tuple[str, ...]) -> Result:
    """Publish for some seconds. Raises: GeneratorError."""
    command = [str(program), "-p", str(port), "-t", str(seconds), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in _ENDED_WELL:
        raise GeneratorError(f"{shlex.join(command)}: {done.stderr.strip()}")
    figures = json.loads(done.stdout)
    return Result(**{field.name: figures[field.name] for field in fields(Result)})
