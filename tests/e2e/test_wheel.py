"""The wheel builds from what is committed, installs where nothing else is, and does what the README
says.

It is compiled where build/compiled holds the extensions of these sources, and plain Python
otherwise: a test does not compile for minutes. Dependencies come from the package index of this
machine. Where that does not answer, those of the running environment are lent, and the one test
that needs the index is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from zipfile import ZipFile

import pytest

from siltstone.version import __version__
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
DEADLINE_SECONDS = 60
IS_KEPT = (
    "import setuptools; setuptools.setup = lambda **_: None; import setup; print(setup.is_kept())"
)


def environment(**others: str) -> dict[str, str]:
    """Return our environment without anything that points to these sources."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "SILTSTONE_")
    return {
        name: text for name, text in os.environ.items() if not name.startswith(left_out)
    } | others


def run(*command: str, cwd: Path, **others: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**others),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )


def output_of(*command: str, cwd: Path, **others: str) -> str:
    done = run(*command, cwd=cwd, **others)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources."""
    clone = tmp_path_factory.mktemp("clone")
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, clone)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", clone / "src", ignore=ignored)
    if (ROOT / "build" / "compiled").is_dir():
        shutil.copytree(ROOT / "build" / "compiled", clone / "build" / "compiled")
    is_kept = output_of(sys.executable, "-c", IS_KEPT, cwd=clone).strip() == "True"
    output_of(
        *(sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--no-build-isolation"),
        *("--python", sys.executable, "--out-dir", "dist"),
        cwd=clone,
        SILTSTONE_PURE="0" if is_kept else "1",
    )
    [built] = (clone / "dist").glob("*.whl")
    return built


@dataclass(frozen=True, slots=True)
class Installed:
    """The commands of an environment that has the wheel, and why its dependencies are lent."""

    commands: Path
    lent_because: str


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel in an empty environment."""
    place = tmp_path_factory.mktemp("empty")
    uv = (sys.executable, "-m", "uv")
    output_of(*uv, "venv", "--quiet", "--python", sys.executable, "venv", cwd=place)
    commands = place / "venv" / "bin"
    install = (*uv, "pip", "install", "--quiet", "--python", str(commands / "python"))
    done = run(*install, str(wheel), cwd=place)
    if done.returncode == 0:
        return Installed(commands, "")
    output_of(*install, "--no-deps", "--no-index", str(wheel), cwd=place)
    [packages] = place.glob("venv/lib/python*/site-packages")
    lent = sysconfig.get_path("purelib")
    (packages / "lent.pth").write_text(f"import site; site.addsitedir({lent!r})\n", "utf-8")
    return Installed(commands, done.stderr)


def readme_block(heading: str, language: str) -> str:
    """Return the first block of a language below a heading of the README."""
    _, found, below = (ROOT / "README.md").read_text("utf-8").partition(f"\n## {heading}\n")
    assert found
    block = re.search(rf"^```{language}\n(.*?)^```$", below, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1]


def readme_commands(port: int) -> dict[str, str]:
    """Return the first steps, by the word after `siltstone`, for another port than 1883."""
    lines = readme_block("First steps", "console").splitlines()
    texts = [line.removeprefix("$ ").removesuffix(" &") for line in lines if line.startswith("$ ")]
    found = {text.split()[1]: text for text in texts if text.startswith("siltstone ")}
    assert list(found) == ["serve", "sub", "pub", "read"]
    found["serve"] = found["serve"].replace("--port 1883", f"--port {port}")
    for word in ("sub", "pub"):
        found[word] = found[word].replace(f"siltstone {word}", f"siltstone {word} --port {port}")
    assert str(port) in found["serve"]
    return found


class Shell:
    """Runs commands as a reader of the README does: in one directory, found by the path."""

    def __init__(self, directory: Path, commands: Path) -> None:
        self._directory = directory
        self._path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        self.background: list[subprocess.Popen[str]] = []

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return run("/bin/sh", "-c", command, cwd=self._directory, PATH=self._path)

    def start(self, command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=self._directory,
            env=environment(PATH=self._path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.background.append(process)
        return process


@pytest.fixture
def shell(installed: Installed, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, installed.commands)
    yield shell
    for process in shell.background:
        process.send_signal(signal.SIGTERM)
    for process in shell.background:
        process.communicate(timeout=DEADLINE_SECONDS)


def test_the_wheel_has_the_sources_and_nothing_else_of_the_clone(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    modules = {name for name in names if name.endswith(".py")}
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert modules == sources
    others = {Path(name).parts[0] for name in names if not name.endswith((".py", ".so"))}
    assert others == {"siltstone", f"siltstone-{__version__}.dist-info"}
    assert any(name.endswith(".so") for name in names) == ("none-any" not in wheel.name)


def test_the_installed_command_says_its_version_and_its_form(wheel: Path, shell: Shell) -> None:
    form = "pure Python" if "none-any" in wheel.name else "compiled"
    assert shell.run("siltstone --version").stdout == f"siltstone {__version__} ({form})\n"


def test_the_wheel_names_all_that_it_needs(installed: Installed, shell: Shell) -> None:
    if installed.lent_because:
        pytest.skip(f"the package index does not answer: {installed.lent_because}")
    done = shell.run("siltstone config reference")
    assert (done.returncode, done.stderr) == (0, "")


def wait_for(lines: IO[str] | None, text: str) -> None:
    """Read a log until a line has the text."""
    assert lines is not None
    assert any(text in line for line in lines), f"the log ended without {text!r}"


def test_the_first_steps_of_the_readme_work_as_written(shell: Shell) -> None:
    steps = readme_commands(free_port())
    broker = shell.start(steps["serve"])
    wait_for(broker.stderr, "listening")
    subscriber = shell.start(steps["sub"])
    assert subscriber.stdout is not None
    os.set_blocking(subscriber.stdout.fileno(), False)
    deadline = time.monotonic() + DEADLINE_SECONDS
    shown = ""
    # The subscriber takes a moment to connect; what is published before does not reach it.
    while not shown:
        assert time.monotonic() < deadline, "the subscriber received nothing"
        published = shell.run(steps["pub"])
        assert (published.returncode, published.stderr) == (0, "")
        shown = subscriber.stdout.readline()
    assert shown == "plant/7/oven/temperature 231.5\n"
    read = shell.run(steps["read"])
    assert (read.returncode, read.stderr) == (0, "")
    assert "plant/7/oven/temperature" in read.stdout
    code = readme_block("First steps", "python")
    printed = shell.run(f"python - <<'CODE'\n{code}CODE\n")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "'value': b'231.5'" in printed.stdout
