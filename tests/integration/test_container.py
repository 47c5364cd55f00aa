"""The image, the compose file and the hosted checks are true, as far as no engine is needed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from siltstone.broker.settings.broker import BrokerSettings
from tests.support.broker_process import COMMAND, BrokerProcess, Listener, clean_environment

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "packaging" / "container.toml"
HEALTH_SOCKET = "/run/siltstone/health.sock"


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile as words and their arguments, lines joined and comments left out."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    parts = (line.partition(" ") for line in text.splitlines() if line)
    return [(word, " ".join(rest.split())) for word, _, rest in parts]


def last_of(word: str) -> str:
    return [rest for each, rest in instructions() if each == word][-1]


def health_command() -> list[str]:
    """Return the command of the health check, without the name of the program."""
    _, _, command = last_of("HEALTHCHECK").partition(" CMD ")
    program, *arguments = json.loads(command)
    assert program == "siltstone"
    return list(arguments)


def is_sent(path: str) -> bool:
    """Tell whether .dockerignore leaves a path to the build: the last pattern that fits decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.removeprefix("!")
        names = [path, *(parent.as_posix() for parent in Path(path).parents)]
        if pattern and not pattern.startswith("#") and any(fnmatch(n, pattern) for n in names):
            sent = line.startswith("!")
    return sent


def test_every_file_that_is_copied_exists_and_is_sent_to_the_build() -> None:
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY"]
    names = [name for names in copied for name in names if "--from=build" not in names]
    assert sorted(names) == [
        "LICENSE",
        "README.md",
        "packaging/container.toml",
        "pyproject.toml",
        "requirements.lock",
        "setup.py",
        "src",
    ]
    assert [name for name in names if not (ROOT / name).exists() or not is_sent(name)] == []
    assert is_sent("src/siltstone/version.py")
    assert not is_sent("src/siltstone/__pycache__/version.pyc")
    assert not is_sent("tests/conftest.py")


def test_what_is_copied_suffices_to_describe_the_wheel() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert {project["readme"], *project["license-files"]} <= {"README.md", "LICENSE"}


def test_the_broker_of_the_image_is_not_root_and_keeps_its_data_in_a_volume() -> None:
    stages = [number for number, (word, _) in enumerate(instructions()) if word == "FROM"]
    last = dict(instructions()[stages[-1] :])
    data = tomllib.loads(SETTINGS.read_text("utf-8"))["data"]
    assert (len(stages), last["USER"], last["VOLUME"], last["WORKDIR"]) == (
        2,
        "siltstone",
        data,
        data,
    )
    assert "useradd --system --uid 1883" in instructions()[stages[-1] + 1][1]
    assert json.loads(last["ENTRYPOINT"]) == ["siltstone"]
    assert json.loads(last["CMD"]) == ["serve", "--config", "/etc/siltstone/siltstone.toml"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Run the broker with the listeners of the image, at other addresses."""
    settings = BrokerSettings.model_validate(tomllib.loads(SETTINGS.read_text("utf-8")))
    tcp, unix = settings.listeners
    assert (tcp.address, unix.address) == ("tcp://0.0.0.0:1883", f"unix://{HEALTH_SOCKET}")
    listeners: dict[str, Listener] = {
        "tcp": {"port": 0, "host": tcp.host, "allow_anonymous": bool(tcp.allow_anonymous)},
        "unix": {"kind": "unix", "path": str(tmp_path / "health.sock")},
    }
    broker = BrokerProcess(tmp_path / "data", listeners=listeners)
    broker.start()
    yield broker
    if broker.is_running:
        broker.kill()


def check_health(directory: Path) -> int:
    socket = str(directory / "health.sock")
    command = [each.replace(HEALTH_SOCKET, socket) for each in health_command()]
    assert socket in command
    return subprocess.run(
        [*COMMAND, *command], check=False, capture_output=True, env=clean_environment()
    ).returncode


def test_the_health_check_tells_a_broker_that_serves_from_one_that_does_not(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    assert check_health(tmp_path) == 0
    broker.kill()
    assert check_health(tmp_path) == 3


def test_the_constraints_of_the_image_are_the_versions_of_the_lock() -> None:
    [command] = [rest for word, rest in instructions() if word == "RUN" and "sed" in rest]
    sed = shlex.split(command.partition(">")[0])
    done = subprocess.run(sed, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if not line.lstrip().startswith("#")]
    assert "librt==" in done.stdout
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[^ \\]+( ; .+)?", line)] == []


def test_the_compose_file_runs_the_image_with_its_volume_and_for_this_machine_alone() -> None:
    document = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    broker = document["services"]["broker"]
    assert (broker["build"], broker["ports"], broker["volumes"], document["volumes"]) == (
        ".",
        ["127.0.0.1:1883:1883"],
        [f"data:{last_of('VOLUME')}"],
        {"data": {}},
    )


def test_the_hosted_checks_are_those_of_the_clone_on_every_supported_python() -> None:
    workflow: Any = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    job = workflow["jobs"]["check"]
    steps = [step["run"] for step in job["steps"] if "run" in step]
    wanted = [
        line
        for line in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
        if line.startswith("make ")
    ]
    assert steps == wanted == ["make test", "make lint"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["requires-python"] == ">=3.11"
    # YAML takes a bare `on` for true.
    assert set(workflow[True]) == {"push", "pull_request"}
