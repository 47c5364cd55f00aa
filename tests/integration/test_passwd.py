from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from stat import S_IMODE

import pytest

from siltstone.broker.access.passwords import parse_passwords
from siltstone.cli.main import execute
from siltstone.cli.mqtt.passwd import PrivateFileSystem
from siltstone.fs.publish import replace_file


def mode(path: Path) -> int:
    return S_IMODE(path.stat().st_mode)


def test_a_new_password_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    replace_file(PrivateFileSystem(file), file, b"# nobody yet\n")
    assert (mode(file), file.read_bytes()) == (0o600, b"# nobody yet\n")
    assert [path.name for path in tmp_path.iterdir()] == ["passwords"]


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o660])
def test_a_changed_password_file_keeps_its_mode(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "passwords"
    file.write_bytes(b"")
    file.chmod(kept)
    replace_file(PrivateFileSystem(file), file, b"# nobody yet\n")
    assert (mode(file), file.read_bytes()) == (kept, b"# nobody yet\n")


def test_a_file_that_is_not_regular_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for file in (pipe, link, tmp_path):
        for command in (
            ["passwd", str(file), "alice", "--delete"],
            ["backup", str(file), "--force", "--data", str(tmp_path)],
        ):
            assert execute(command) == 2
            assert capsys.readouterr().err == (
                f"siltstone: {file} is not a regular file; choose another name\n"
            )
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_commands_at_the_same_time_lose_no_user(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "siltstone.cli.main", "passwd", str(file), user, "--stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for user in ("a", "b", "c", "d")
    ]
    outcomes = [process.communicate(b"secret\n")[0] for process in running]
    assert outcomes == [f"added {user} to {file}\n".encode() for user in ("a", "b", "c", "d")]
    found = parse_passwords(file.read_text("utf-8").splitlines(), file)
    assert sorted(found) == ["a", "b", "c", "d"]
    assert all(known.matches(b"secret") for known in found.values())


def test_a_password_file_that_is_a_link_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "passwords")
    assert execute(["passwd", str(link), "--list"]) == 2
    assert capsys.readouterr().err == f"siltstone: not a regular file: path={link}\n"
