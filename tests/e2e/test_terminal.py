"""The command on a terminal: progress, and the summary of a broker."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.test_cli import DEADLINE_SECONDS, ENVIRONMENT, Runner, create, json_lines


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def cli(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


class Terminal:
    """A terminal of 80 columns; what a command shows there is in `shown` when it has ended."""

    def __init__(self) -> None:
        self.shown = b""
        self.master, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def read_to_the_end(self) -> None:
        """Read until the last process has closed its side."""
        os.close(self.theirs)
        with suppress(OSError):
            while chunk := os.read(self.master, 65_536):
                self.shown += chunk
        os.close(self.master)


LONG_COMMANDS = [
    (("append", "metrics", "rows.jsonl"), b"Appending", b"rows/s"),
    (("read", "metrics", "-o", "rows.csv"), b"Reading", b"rows/s"),
    (("verify", "--all"), b"Verifying", b"B/s"),
    (("backup", "backup.gz"), b"Backing up", b"B/s"),
    (("restore", "made.gz"), b"Restoring", b"B/s"),
]


@pytest.mark.parametrize(("args", "text", "rate"), LONG_COMMANDS, ids=lambda value: str(value)[:20])
def test_long_commands_show_progress_on_a_terminal_and_nothing_in_a_pipe(
    cli: Runner, args: tuple[str, ...], text: bytes, rate: bytes
) -> None:
    create(cli, 1000)
    (cli.directory / "rows.jsonl").write_bytes(json_lines(range(1000)))
    if args[0] == "restore":
        cli.output("backup", "made.gz")
        cli.data = cli.directory / "restored"
    terminal = Terminal()
    done = subprocess.run(
        cli.arguments(*args),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal.theirs,
        check=False,
        cwd=cli.directory,
        env=ENVIRONMENT | {"TERM": "xterm"},
        timeout=DEADLINE_SECONDS,
    )
    terminal.read_to_the_end()
    assert done.returncode == 0
    assert b"Traceback" not in terminal.shown
    assert text in terminal.shown
    assert rate in terminal.shown
    if args[0] == "restore":
        cli.data = cli.directory / "again"
    piped = cli.run(*args, *(["--force"] if args[0] == "backup" else []))
    assert piped.returncode == 0
    assert text not in piped.stderr
    assert text not in piped.stdout


def test_serve_prints_a_summary_on_a_terminal_and_stops_by_an_interrupt(cli: Runner) -> None:
    terminal = Terminal()
    process = subprocess.Popen(
        [*cli.arguments("serve"), "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=terminal.theirs,
        cwd=cli.directory,
        env=ENVIRONMENT | {"TERM": "xterm"},
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - no other thread runs here
    )
    with process:
        os.close(terminal.theirs)
        shown = b""
        with suppress(OSError):
            while b"Ctrl-C" not in shown:
                shown += os.read(terminal.master, 65_536)
        refused = cli.run("verify", "--all", "--repair")
        process.send_signal(signal.SIGINT)
        with suppress(OSError):
            while os.read(terminal.master, 65_536):
                continue
        os.close(terminal.master)
    assert process.returncode == 0
    assert (refused.returncode, refused.stderr.decode()) == (
        2,
        (
            f"siltstone: data directory {cli.data} is in use by process {process.pid} "
            f"(siltstone serve); stop it first\n"
        ),
    )
    for part in (b"is running.", b"Data directory", b"tcp://127.0.0.1:", b"siltstone pub", b"Stop"):
        assert part in shown
    assert b"event=" not in shown
    assert b" starting " not in shown
