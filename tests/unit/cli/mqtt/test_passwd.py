from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import pytest

from siltstone.broker.access.passwords import PasswordHash, parse_passwords
from siltstone.cli.mqtt import passwd
from siltstone.fs.api import Lock
from siltstone.fs.publish import replace_file
from tests.support.command_line import CommandLine

FILE = PurePath("/etc/passwords")
LOCK = PurePath("/etc/passwords.lock")
OLD = PasswordHash.make(b"old")

TOO_LONG = "a password must have at most 65535 bytes; this one is longer"


@pytest.fixture
def siltstone(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Give the command line an empty directory in memory for its password files."""
    monkeypatch.setattr(passwd, "PrivateFileSystem", lambda file: siltstone.fs)
    siltstone.fs.make_directory(FILE.parent)
    return siltstone


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer each prompt for a password with the first of these; none: the end of the input."""
    answers: list[str] = []

    def getpass(prompt: str) -> str:
        if not answers:
            raise EOFError
        assert prompt == ("Password for alice: " if len(answers) == 2 else "Again: ")
        return answers.pop(0)

    monkeypatch.setattr(passwd, "getpass", getpass)
    return answers


def contents(siltstone: CommandLine) -> str:
    return siltstone.fs.read(FILE).decode()


def users(siltstone: CommandLine) -> dict[str, PasswordHash]:
    return parse_passwords(contents(siltstone).splitlines(), FILE)


def test_the_first_user_creates_the_file(siltstone: CommandLine) -> None:
    outcome = siltstone("passwd", str(FILE), "alice", "--stdin", stdin=b"wonderland\n")
    assert (outcome.status, outcome.out, outcome.err) == (0, "added alice to /etc/passwords\n", "")
    assert [(user, known.matches(b"wonderland")) for user, known in users(siltstone).items()] == [
        ("alice", True)
    ]
    assert contents(siltstone).endswith("\n")
    assert "wonderland" not in contents(siltstone)


def test_a_password_is_changed_and_all_else_stays(siltstone: CommandLine) -> None:
    text = f"# meters\nalice:{OLD}\n\n# panels\nbob:{OLD}\n"
    replace_file(siltstone.fs, FILE, text.encode())
    outcome = siltstone("passwd", str(FILE), "alice", "--stdin", stdin=b"new")
    assert (outcome.status, outcome.out) == (
        0,
        "changed the password of alice in /etc/passwords\n",
    )
    found = users(siltstone)
    assert contents(siltstone) == f"# meters\nalice:{found['alice']}\n\n# panels\nbob:{OLD}\n"
    assert (found["alice"].matches(b"new"), found["alice"].matches(b"old")) == (True, False)


def test_a_user_is_deleted(siltstone: CommandLine) -> None:
    replace_file(siltstone.fs, FILE, f"# one\nalice:{OLD}\n# two\nbob:{OLD}".encode())
    outcome = siltstone("passwd", str(FILE), "alice", "--delete")
    assert (outcome.status, outcome.out) == (0, "deleted alice from /etc/passwords\n")
    assert contents(siltstone) == f"# one\n# two\nbob:{OLD}\n"
    again = siltstone("passwd", str(FILE), "alice", "--delete")
    assert (again.status, again.out, again.err) == (
        2,
        "",
        (
            "siltstone: /etc/passwords has no user 'alice'; "
            "'siltstone passwd /etc/passwords --list' shows all\n"
        ),
    )


def test_users_are_listed_in_order_without_their_hashes(siltstone: CommandLine) -> None:
    replace_file(siltstone.fs, FILE, f"# one\nbob:{OLD}\nalice liddell:{OLD}\n".encode())
    outcome = siltstone("passwd", str(FILE), "--list")
    assert (outcome.status, outcome.out, outcome.err) == (0, "bob\nalice liddell\n", "")


@pytest.mark.parametrize(
    ("given", "password"),
    [
        (b"a b\n", b"a b"),
        (b" a \r\n", b" a "),
        (b"\xff\x00", b"\xff\x00"),
        (b"x" * 65_535 + b"\r\n", b"x" * 65_535),
    ],
)
def test_standard_input_holds_one_line(
    siltstone: CommandLine, given: bytes, password: bytes
) -> None:
    assert siltstone("passwd", str(FILE), "alice", "--stdin", stdin=given).status == 0
    assert users(siltstone)["alice"].matches(password)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (b"", "a password must have 1 to 65535 bytes, got 0"),
        (b"\n", "a password must have 1 to 65535 bytes, got 0"),
        (b"x" * 65_536 + b"\n", TOO_LONG),
        (b"x" * 200_000, TOO_LONG),
        (
            b"secret\nsecret\n",
            "standard input has several lines; it must have one, the password",
        ),
    ],
)
def test_a_password_that_cannot_be_one_changes_nothing(
    siltstone: CommandLine, given: bytes, complaint: str
) -> None:
    outcome = siltstone("passwd", str(FILE), "alice", "--stdin", stdin=given)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"siltstone: {complaint}\n")
    assert siltstone.fs.list(FILE.parent) == []


def test_a_person_types_the_password_twice(siltstone: CommandLine, typed: list[str]) -> None:
    typed[:] = ["wönder\udcff", "wönder\udcff"]
    outcome = siltstone("passwd", str(FILE), "alice", terminal=True)
    assert (outcome.status, outcome.out) == (0, "added alice to /etc/passwords\n")
    assert users(siltstone)["alice"].matches("wönder".encode() + b"\xff")


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        (["one", "two"], "the two passwords differ; nothing was changed"),
        (["", ""], "a password must have 1 to 65535 bytes, got 0"),
        ([], "no password was entered; nothing was changed"),
    ],
)
def test_what_is_not_typed_twice_changes_nothing(
    siltstone: CommandLine, typed: list[str], answers: list[str], complaint: str
) -> None:
    typed[:] = answers
    outcome = siltstone("passwd", str(FILE), "alice", terminal=True)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"siltstone: {complaint}\n")
    assert siltstone.fs.list(FILE.parent) == []


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("alice",), "standard input is not a terminal; pass --stdin to read the password there"),
        ((), "USER is missing; name the user whose password to set, or pass --list"),
        (("alice", "--list"), "--list takes no USER; leave one of them out"),
        (
            ("alice", "--list", "--delete"),
            "--stdin, --delete and --list exclude each other; pass one of them",
        ),
        (
            ("alice", "--stdin", "--delete"),
            "--stdin, --delete and --list exclude each other; pass one of them",
        ),
        (("--list",), "no such file or directory: path=/etc/passwords"),
        (
            ("alice", "--delete"),
            (
                "/etc/passwords has no user 'alice'; "
                "'siltstone passwd /etc/passwords --list' shows all"
            ),
        ),
        (
            ("a:b", "--stdin"),
            "a user name must not have a colon or control characters: user='a:b'",
        ),
        (
            ("a\nb", "--stdin"),
            "a user name must not have a colon or control characters: user='a\\nb'",
        ),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    siltstone: CommandLine, args: tuple[str, ...], complaint: str
) -> None:
    outcome = siltstone("passwd", str(FILE), *args, stdin=b"secret")
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"siltstone: {complaint}\n")
    assert not siltstone.fs.exists(FILE)


def test_a_file_that_is_wrong_is_left_as_it_is(siltstone: CommandLine) -> None:
    replace_file(siltstone.fs, FILE, b"alice:secret\n")
    for args in (("alice", "--stdin"), ("alice", "--delete"), ("--list",)):
        outcome = siltstone("passwd", str(FILE), *args, stdin=b"new")
        assert (outcome.status, outcome.out, outcome.err) == (
            2,
            "",
            (
                "siltstone: the hash must have the form $scrypt$ln=…,r=…,p=…$salt$hash: write it "
                "with 'siltstone passwd': "
                "path=/etc/passwords line=1\n"
            ),
        )
    assert contents(siltstone) == "alice:secret\n"


class Pauses:
    """Stands for the passing of time: each pause is counted, and one of them frees the lock."""

    def __init__(self, lock: Lock, *, frees: int | None) -> None:
        self.seconds: list[float] = []
        self._lock = lock
        self._frees = frees

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._frees:
            self._lock.release()


@pytest.fixture
def lock(siltstone: CommandLine) -> Iterator[Lock]:
    taken = siltstone.fs.lock(LOCK)
    yield taken
    taken.release()


def test_a_command_waits_for_another_one(
    siltstone: CommandLine, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses(lock, frees=3)
    monkeypatch.setattr("siltstone.cli.mqtt.passwd.sleep", pauses)
    assert siltstone("passwd", str(FILE), "alice", "--stdin", stdin=b"x").status == 0
    assert pauses.seconds == [0.02, 0.02, 0.02]
    siltstone.fs.lock(LOCK).release()


def test_a_command_does_not_wait_for_ever(
    siltstone: CommandLine, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses(lock, frees=None)
    monkeypatch.setattr("siltstone.cli.mqtt.passwd.sleep", pauses)
    outcome = siltstone("passwd", str(FILE), "alice", "--stdin", stdin=b"x")
    assert (outcome.status, outcome.err) == (
        2,
        "siltstone: another siltstone passwd is changing /etc/passwords; try again\n",
    )
    assert (round(sum(pauses.seconds), 3), siltstone.fs.exists(FILE)) == (5.0, False)


def test_the_lock_is_given_back_when_the_disk_is_full(siltstone: CommandLine) -> None:
    replace_file(siltstone.fs, FILE, f"alice:{OLD}\n".encode())
    siltstone.fs.capacity_bytes = 0
    outcome = siltstone("passwd", str(FILE), "bob", "--stdin", stdin=b"x")
    assert outcome.status == 3
    assert outcome.err.startswith("siltstone: no space left on the disk: path=/etc/passwords.tmp")
    assert contents(siltstone) == f"alice:{OLD}\n"
    siltstone.fs.lock(LOCK).release()
