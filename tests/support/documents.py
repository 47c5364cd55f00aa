"""The code blocks of the documentation, and a reader that runs them.

A block runs unless the comment before it says why it cannot: `<!-- not run: needs systemd -->`.
`<!-- the broker is stopped -->` before a block means that the page told the reader to stop it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from siltstone.cli.main import execute
from tests.support.broker_process import COMMAND, clean_environment
from tests.support.loaded_settings import load_settings
from tests.support.ports import free_port

ROOT: Final = Path(__file__).resolve().parent.parent.parent
FENCE: Final = re.compile(
    r"(?:^ *<!-- (?:not run: (?P<reason>[^>]+)|(?P<stopped>the broker is stopped)) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
RUNS: Final = frozenset({"sh", "console", "python", "toml"})
SECONDS: Final = 60

# Names in a page, and their replacements in a test; the first match is used.
PLACES: Final = {
    "/var/lib/siltstone-example": "example",
    "/var/lib/siltstone": "siltstone-data",
    "/etc/siltstone": "etc",
    "/etc/ssl": "etc",
    "/run/siltstone": ".",
    "/srv": "srv",
    '"0.0.0.0"': '"127.0.0.1"',
    '"::"': '"127.0.0.1"',
    "node.example": "localhost",
}
PORTS: Final = ("1883", "8883", "8815", "9410", "8080")


class Block(NamedTuple):
    """A fenced block of a page; it runs if it has no reason."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None
    is_broker_stopped: bool


def pages() -> list[str]:
    """Return the pages whose blocks run: decisions are history, formats have their own tests."""
    found = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")]
    kept = [name for name in found if "decisions/" not in name and name != "docs/formats.md"]
    return ["README.md", "CONTRIBUTING.md", "packaging/README.md", *sorted(kept)]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    text = (ROOT / page).read_text("utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("text")),
            match["language"],
            "".join(
                line.removeprefix(match["indent"])
                for line in match["text"].splitlines(keepends=True)
            ),
            match["reason"],
            match["stopped"] is not None,
        )
        for match in FENCE.finditer(text)
    ]


class Reader:
    """Follows a page in a directory of its own, with a broker."""

    def __init__(self, directory: Path, names: Mapping[str, Any]) -> None:
        self._directory = directory
        self._names = dict(names)
        self._ports = {port: str(free_port()) for port in PORTS}
        self._broker: subprocess.Popen[bytes] | None = None

    def follow(self, block: Block) -> None:
        """Run a block. Raises: AssertionError if it does not work."""
        text = self._here(block.text)
        if block.is_broker_stopped:
            self.stop()
        if block.language == "toml":
            self._configure(text)
        elif block.language == "python":
            code = compile(text, f"{block.page}:{block.line}", "exec")
            exec(code, self._names)  # noqa: S102 - our own examples
        else:
            for command in _commands(text, is_console=block.language == "console"):
                self._run(command, f"{block.page}:{block.line}")

    def start(self, arguments: str = "") -> None:
        """Start a broker instead of the running one."""
        self.stop()
        words = shlex.split(arguments, comments=True)
        settings = self._directory / "siltstone.toml"
        configured = settings.read_text("utf-8") if settings.exists() else ""
        if "--port" not in words and "[[listeners]]" not in configured:
            words += ["--port", self._ports["1883"]]
        self._broker = subprocess.Popen(
            [*COMMAND, "serve", *words],
            cwd=self._directory,
            env=clean_environment(),
            stderr=subprocess.PIPE,
        )
        assert self._broker.stderr is not None
        told = []
        left = 2 if "[topiclog]" in configured else 1
        for line in self._broker.stderr:
            told.append(line)
            left -= b" listening " in line
            if left == 0:
                # The output of the broker for one page fits into the pipe.
                return
        raise AssertionError(f"no broker: {b''.join(told).decode()}")

    def stop(self) -> None:
        """Kill the broker, as a crash does."""
        if self._broker is not None:
            self._broker.send_signal(signal.SIGKILL)
            self._broker.wait(SECONDS)
            assert self._broker.stderr is not None
            self._broker.stderr.close()
            self._broker = None

    def _here(self, text: str) -> str:
        # Spark was started in another directory.
        text = re.sub(r'"((?:siltstone|plant)-data)"', rf'"{self._directory}/\1"', text)
        text = text.replace("import readings/", f"import {self._directory}/readings/")
        for written, place in PLACES.items():
            is_path = written.startswith("/")
            text = text.replace(written, str(self._directory / place) if is_path else place)
        if self._broker is not None:
            text = re.sub(r"\bPID\b", str(self._broker.pid), text)
        for written, port in self._ports.items():
            text = re.sub(rf"\b{written}\b", port, text)
        return text

    def _configure(self, text: str) -> None:
        tables = tomllib.loads(text)
        # The rules of the lake are in a file of their own.
        if {"rule", "lake"} & tables.keys():
            return
        file = self._directory / "siltstone.toml"
        file.write_text(text, "utf-8")
        load_settings(file, {}, {})

    def _run(self, command: str, place: str) -> None:
        words = shlex.split(command, comments=True)
        if words[:2] == ["siltstone", "serve"] and "--check" not in words:
            self.start(command.partition("serve")[2].replace("&", ""))
            return
        command = self._with_port(command)
        if words[0] == "siltstone" and not re.search(r"[|&<>;$]", re.sub(r"'[^']*'", "", command)):
            # Run it in this process: a child process would load Python and all modules.
            status = execute(shlex.split(command, comments=True)[1:])
            assert status == 0, f"{place}: {command}: status {status}"
            return
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", command],
            cwd=self._directory,
            env=clean_environment() | {"PATH": f"{self._directory}/bin:{os.environ['PATH']}"},
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{place}: {command}: {done.stderr.decode()}"

    def _with_port(self, command: str) -> str:
        """Point clients to the broker of this page, and make a subscriber end by itself."""
        if re.search(r" -(p|-port|L|-url|-unix)\b", command) is None:
            command = re.sub(
                r"\bsiltstone (pub|sub)\b", rf"siltstone \1 -p {self._ports['1883']}", command
            )
        command = re.sub(
            r"\bsiltstone topic (\w+)", rf"siltstone topic \1 --port {self._ports['9410']}", command
        )
        if "siltstone sub" in command and re.search(r" -[CW]\b", command) is None:
            command = command.replace("siltstone sub", "siltstone sub -W 1", 1)
        return command


def _commands(text: str, *, is_console: bool) -> Iterator[str]:
    """Yield the commands of a block: one for each line, joined after a trailing backslash."""
    if is_console:
        text = "".join(line[2:] for line in text.splitlines(keepends=True) if line.startswith("$ "))
    for command in re.sub(r"\\\n\s*", "", text).splitlines():
        if command.strip() and not command.lstrip().startswith("#"):
            yield command


def install_command(directory: Path) -> None:
    """Put the command `siltstone` of this tree into a directory."""
    directory.mkdir()
    script = directory / "siltstone"
    script.write_text(
        f'#!/bin/sh\nexec {shlex.join([sys.executable, *COMMAND[1:]])} "$@"\n', "utf-8"
    )
    script.chmod(0o755)


@contextmanager
def following(directory: Path, names: Mapping[str, Any]) -> Iterator[Reader]:
    """Yield a reader, and stop its broker at the end."""
    reader = Reader(directory, names)
    try:
        yield reader
    finally:
        reader.stop()
