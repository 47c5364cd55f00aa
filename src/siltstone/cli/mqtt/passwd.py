"""`siltstone passwd`: set, delete and list the users of a password file.

The file is replaced as a whole, so a broker that reads it meanwhile sees the old or the new one.
Two commands at the same time wait for each other at a lock file beside it. Passwords are never
printed, and never read from the arguments, which other users could see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from getpass import getpass
from pathlib import Path, PurePath
from stat import S_IMODE
from time import sleep
from typing import Annotated, Final

import typer

from siltstone.broker.access.passwords import (
    PASSWORD_SIZE_MAX,
    PasswordHash,
    check_user,
    parse_passwords,
    text_lines,
    with_password,
    without_user,
)
from siltstone.cli.options import check_replaceable
from siltstone.cli.output.output import note, say
from siltstone.cli.output.streams import is_terminal, standard_input
from siltstone.errors import LockedError, NotFoundError, UsageError
from siltstone.fs.api import FileSystem, Lock
from siltstone.fs.posix import PosixFile, PosixFileSystem
from siltstone.fs.publish import replace_file

_PRIVATE: Final = 0o600
_LOCK_TRIES: Final = 250
_LOCK_WAIT_SECONDS: Final = 0.02


class PrivateFileSystem(PosixFileSystem):
    """The disk, where a new file is readable only by its owner from the moment it exists.

    A file that will replace `file` then gets the mode of `file`. Its owner is the user that runs
    this command.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def create(self, path: PurePath) -> PosixFile:
        made = Path(path)
        made.touch(mode=_PRIVATE, exist_ok=False)
        if self._file.exists():
            old, new = self._file.stat(), made.stat()
            if (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid):
                made.chmod(S_IMODE(old.st_mode))
            else:
                note(f"you now own {self._file}; check that the broker can still read it")
        return self.open(path, writable=True)


def passwd(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Password file. It is created if it does not exist.",
            show_default=False,
        ),
    ],
    user: Annotated[
        str | None, typer.Argument(metavar="USER", help="Name of the user.", show_default=False)
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the password from standard input, one line.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the user.")] = False,
    list_users: Annotated[bool, typer.Option("--list", help="List the users.")] = False,
) -> None:
    """Set the password of a user, or delete or list users.

    The command asks for the password. Name the file in access.password_file. The broker reads it
    at its start and on SIGHUP.

    $ siltstone passwd users.passwd alice
    $ siltstone passwd users.passwd alice --stdin < password.txt
    $ siltstone passwd users.passwd alice --delete
    $ siltstone passwd users.passwd --list
    """
    if stdin + delete + list_users > 1:
        raise UsageError("--stdin, --delete and --list exclude each other; pass one of them")
    if list_users != (user is None):
        raise UsageError(
            "USER is missing; name the user whose password to set, or pass --list"
            if user is None
            else "--list takes no USER; leave one of them out"
        )
    fs = PrivateFileSystem(file)
    if user is None:
        for name in parse_passwords(text_lines(fs.read(file), file), file):
            say(name)
        return
    check_user(user)
    check_replaceable(file)
    if delete:
        _delete(fs, file, user)
    else:
        _set(fs, file, user, _read_password() if stdin else _ask_password(user))


def _set(fs: FileSystem, file: Path, user: str, password: bytes) -> None:
    if not 0 < len(password) <= PASSWORD_SIZE_MAX:
        raise UsageError(
            f"a password must have 1 to {PASSWORD_SIZE_MAX} bytes, got {len(password)}"
            if len(password) <= PASSWORD_SIZE_MAX
            else f"a password must have at most {PASSWORD_SIZE_MAX} bytes; this one is longer"
        )
    # Hash the password before the lock is taken, because it takes long.
    made = PasswordHash.make(password)
    with _locked(fs, file):
        lines = _read_lines(fs, file)
        known = user in parse_passwords(lines, file)
        _write_lines(fs, file, with_password(lines, user, made))
    say(f"changed the password of {user} in {file}" if known else f"added {user} to {file}")


def _delete(fs: FileSystem, file: Path, user: str) -> None:
    with _locked(fs, file):
        lines = _read_lines(fs, file)
        if user not in parse_passwords(lines, file):
            raise UsageError(
                f"{file} has no user {user!r}; 'siltstone passwd {file} --list' shows all"
            )
        _write_lines(fs, file, without_user(lines, user))
    say(f"deleted {user} from {file}")


def _read_lines(fs: FileSystem, file: Path) -> list[str]:
    try:
        return text_lines(fs.read(file), file)
    except NotFoundError:
        return []


def _write_lines(fs: FileSystem, file: Path, lines: Sequence[str]) -> None:
    replace_file(fs, file, "".join(f"{line}\n" for line in lines).encode())


@contextmanager
def _locked(fs: FileSystem, file: Path) -> Iterator[None]:
    lock = _take_lock(fs, file)
    try:
        yield
    finally:
        lock.release()


def _take_lock(fs: FileSystem, file: Path) -> Lock:
    """Take the lock of a password file; wait a few seconds for other commands.

    The lock file is never removed: otherwise one command could lock the removed file while another
    locks a new one.
    """
    path = file.with_name(f"{file.name}.lock")
    for _ in range(_LOCK_TRIES):
        try:
            return fs.lock(path)
        except LockedError:
            sleep(_LOCK_WAIT_SECONDS)
    raise LockedError(f"another siltstone passwd is changing {file}; try again")


def _read_password() -> bytes:
    # One byte more than the limit, and a line end: enough to detect a password that is too long.
    password = standard_input().read(PASSWORD_SIZE_MAX + 3)
    password = password.removesuffix(b"\n").removesuffix(b"\r")
    if b"\n" in password:
        raise UsageError("standard input has several lines; it must have one, the password")
    return password


def _ask_password(user: str) -> bytes:
    if not is_terminal():
        raise UsageError(
            "standard input is not a terminal; pass --stdin to read the password there"
        )
    try:
        password = getpass(f"Password for {user}: ")
        again = getpass("Again: ")
    except EOFError as exc:
        raise UsageError("no password was entered; nothing was changed") from exc
    if password != again:
        raise UsageError("the two passwords differ; nothing was changed")
    # The bytes that the terminal sent, even if they are not UTF-8.
    return password.encode(errors="surrogateescape")
