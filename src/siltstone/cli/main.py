"""The command `siltstone`, and the one place where errors become a sentence and a status.

0    done
1    verify found problems; a question was answered with no; the reader of our output went away
2    wrong input: the sentence says what to do
3    the store could not do it: a full or failing disk, damaged data
130  interrupted
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Final

import typer

from siltstone.cli.options import plain_complaint
from siltstone.cli.output import note
from siltstone.cli.streams import standard_streams
from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.posix import raise_file_limit
from siltstone.version import __version__, form

# Where each command is. Only the one that is asked for is imported: the others take their time.
COMMANDS: Final[Mapping[str, str]] = {
    "serve": "siltstone.cli.serve",
    "pub": "siltstone.cli.pub",
    "sub": "siltstone.cli.sub",
    "append": "siltstone.cli.append",
    "read": "siltstone.cli.read",
    "slabs": "siltstone.cli.slabs",
    "structure": "siltstone.cli.structure",
    "seal": "siltstone.cli.slabs",
    "drop": "siltstone.cli.slabs",
    "verify": "siltstone.cli.verify",
    "backup": "siltstone.cli.backup",
    "restore": "siltstone.cli.backup",
    "passwd": "siltstone.cli.passwd",
    "sql": "siltstone.cli.sql",
}
GROUPS: Final[Mapping[str, str]] = {
    "db": "siltstone.cli.db",
    "kv": "siltstone.cli.kv",
    "sessions": "siltstone.cli.sessions",
    "groups": "siltstone.cli.groups",
    "retained": "siltstone.cli.retained",
    "clock": "siltstone.cli.clock",
    "snapshot": "siltstone.cli.snapshot",
    "config": "siltstone.cli.config",
    "topic": "siltstone.cli.topic",
    "pipeline": "siltstone.cli.pipeline",
    "spool": "siltstone.cli.spool",
}

# What a disk says of a file that is open: of one that we write, for we name those that we open.
# The last is said of an output that was closed before we began.
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def build(args: Sequence[str]) -> typer.Typer:
    """Return the command line, of which at least what these arguments ask for is there."""
    first = args[0] if args else ""
    is_known = first in COMMANDS or first in GROUPS or first == "--version"
    app = typer.Typer(no_args_is_help=True, help="A durable store of messages by topic and time.")
    app.callback()(siltstone)
    for name, module in GROUPS.items():
        if name == first or not is_known:
            app.add_typer(import_module(module).app, name=name)
    for name, module in COMMANDS.items():
        if name == first or not is_known:
            app.command(name)(getattr(import_module(module), name))
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"siltstone {__version__} ({form()})\n")
        raise typer.Exit


def siltstone(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version, and exit."
        ),
    ] = False,
) -> None:
    """Store messages durably by topic and time, and read them back while others write."""


def execute(args: Sequence[str]) -> int:
    """Run a command line; return the status to exit with."""
    try:
        status = typer.main.get_command(build(args)).main(
            list(args), prog_name="siltstone", standalone_mode=False
        )
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_gone()
    except typer.TyperException as exc:
        return _refuse(plain_complaint(exc), 2, getattr(exc, "ctx", None))
    except UsageError as exc:
        return _refuse(str(exc), 2)
    except SiltstoneError as exc:
        return _refuse(str(exc), 3)
    except OSError as exc:
        if exc.errno in _UNWRITABLE and exc.filename is None:
            return _refuse(f"the output cannot be written: {exc.strerror or exc}", 3)
        # Files that the user named; the store's own disk speaks in SiltstoneErrors.
        named = f": {exc.filename}" if exc.filename is not None else ""
        return _refuse(f"{exc.strerror or exc}{named}", 2)
    except KeyboardInterrupt:
        return 130
    return status if isinstance(status, int) else 0


def _refuse(sentence: str, status: int, context: typer.Context | None = None) -> int:
    """Say what is wrong, in one line; nothing where typer has shown the help already."""
    text = " ".join(sentence.split())
    if text and context is not None:
        text = f"{text.rstrip('.')}; see '{context.command_path} --help'"
    if text:
        note(text)
    return status


def _pipe_gone() -> int:
    """End quietly when nobody reads our output; what is buffered has nowhere to go."""
    with suppress(BrokenPipeError):
        sys.stdout.close()
    return 1


def _flush_output() -> bool:
    """Write what is buffered; where that fails give it up, or Python would try again at its end and
    complain by itself.
    """
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
        return False
    return True


def run() -> None:
    """Run the command line of this process."""
    # A segment, read or written, is an open file: a store of any age has many.
    raise_file_limit()
    with standard_streams():
        status = execute(sys.argv[1:])
        if not sys.stdout.closed and not _flush_output():
            status = status or _refuse("the output cannot be written", 3)
        sys.exit(status)


if __name__ == "__main__":
    run()
