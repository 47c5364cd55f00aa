"""The command `siltstone`, and the only place where errors become a message and an exit status.

0    success; also a job with --continuous that was stopped with Ctrl-C
1    a check found damage or differences; fewer messages than --count; a question was answered with
     no; the reader of the output closed it
2    wrong arguments, settings or input: the message says what to do
3    the operation failed: a full or failing disk, damaged data, a broker that refused
130  interrupted
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from siltstone.cli.options import plain_complaint
from siltstone.cli.output.help import App, HelpGroup
from siltstone.cli.output.output import note
from siltstone.cli.output.streams import standard_streams
from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.process import raise_file_limit
from siltstone.version import __version__, form

# The module of each command, by purpose. Only the module of the requested command is imported,
# because the imports are slow.
PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "Broker": {
        "serve": "siltstone.cli.mqtt.serve",
        "config": "siltstone.cli.mqtt.config",
        "passwd": "siltstone.cli.mqtt.passwd",
        "cluster": "siltstone.cli.mqtt.cluster",
    },
    "Messages": {
        "pub": "siltstone.cli.mqtt.pub",
        "sub": "siltstone.cli.mqtt.sub",
        "retained": "siltstone.cli.mqtt.retained",
        "topic": "siltstone.cli.files.topic",
    },
    "Store": {
        "read": "siltstone.cli.store.read",
        "append": "siltstone.cli.store.append",
        "db": "siltstone.cli.store.db",
        "slabs": "siltstone.cli.store.slabs",
        "structure": "siltstone.cli.store.structure",
        "seal": "siltstone.cli.store.slabs",
        "compact": "siltstone.cli.store.slabs",
        "drop": "siltstone.cli.store.slabs",
        "kv": "siltstone.cli.store.kv",
        "spool": "siltstone.cli.files.spool",
    },
    "Sessions": {
        "sessions": "siltstone.cli.sessions.sessions",
        "groups": "siltstone.cli.sessions.groups",
    },
    "Pipeline": {
        "pipeline": "siltstone.cli.pipeline.pipeline",
        "schema": "siltstone.cli.pipeline.schema",
        "sql": "siltstone.cli.pipeline.sql",
    },
    "Maintenance": {
        "verify": "siltstone.cli.store.verify",
        "backup": "siltstone.cli.files.backup",
        "restore": "siltstone.cli.files.backup",
        "snapshot": "siltstone.cli.files.snapshot",
        "clock": "siltstone.cli.store.clock",
    },
}
COMMANDS: Final = [name for commands in PANELS.values() for name in commands]
# The commands with subcommands.
GROUPS: Final = frozenset(
    {
        "clock",
        "cluster",
        "config",
        "db",
        "groups",
        "kv",
        "pipeline",
        "retained",
        "schema",
        "sessions",
        "snapshot",
        "spool",
        "topic",
    }
)
_FRONT: Final = (
    "Run an MQTT broker that stores every message, and read the messages back.",
    "siltstone serve",
    "siltstone sub -t 'demo/#' -v",
    "siltstone pub -t demo/room -m 21.5",
    "siltstone read messages",
)
START: Final = f"""\
Siltstone {__version__}: an MQTT broker that stores every message.

Start here:
  siltstone serve                        Start the broker on port 1883.
  siltstone sub -t 'demo/#' -v           Print messages as they arrive.
  siltstone pub -t demo/room -m 21.5     Publish a message.
  siltstone read messages                Print the stored messages.
  siltstone db list                      List the databases and their sizes.

Usage: siltstone COMMAND [OPTIONS]
All commands:          siltstone --help
Details of a command:  siltstone COMMAND --help
"""

# Errors of writing an open file. An error of opening a file has a filename and is not in this set.
# EBADF means that the output was closed before the command started.
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


class Siltstone(HelpGroup):
    """The top-level command; its help lists the commands by purpose."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of their panels."""
        return sorted(super().list_commands(ctx), key=COMMANDS.index)


def build(args: Sequence[str]) -> typer.Typer:
    """Return the command line, with at least the command that the arguments name."""
    first = args[0] if args else ""
    is_known = first in COMMANDS or first == "--version"
    app = App(*_FRONT, cls=Siltstone)
    app.callback()(siltstone)
    for panel, commands in PANELS.items():
        for name, place in commands.items():
            if is_known and name != first:
                continue
            module = import_module(place)
            if name in GROUPS:
                app.add_typer(module.app, name=name, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(getattr(module, name))
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"siltstone {__version__} ({form()})\n")
        raise typer.Exit


def siltstone(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Process the options before a command."""


def execute(args: Sequence[str]) -> int:
    """Run a command line; return the exit status."""
    try:
        if not args:
            sys.stdout.write(START)
            sys.stdout.flush()
            return 2
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
            # Only a read or a write of a device fails in this way. The error does not name the
            # device.
            acts = "read the input or write" if exc.errno == errno.EIO else "write"
            return _refuse(f"cannot {acts} the output: {_reason(exc)}", 3)
        # A file that the user named: errors of the store's own files are SiltstoneErrors.
        return _refuse(file_complaint(exc), 2)
    except KeyboardInterrupt:
        return 130
    return status if isinstance(status, int) else 0


def file_complaint(exc: OSError) -> str:
    """Return the error message for a file that the user named."""
    if exc.filename is None:
        return _reason(exc)
    path = Path(str(exc.filename))
    if isinstance(exc, FileNotFoundError) and not path.parent.exists():
        return f"cannot open {path}: directory {path.parent} does not exist"
    return f"cannot open {path}: {_reason(exc)}"


def _reason(exc: OSError) -> str:
    text = exc.strerror or str(exc)
    return f"{text[:1].lower()}{text[1:]}"


def _refuse(sentence: str, status: int, context: typer.Context | None = None) -> int:
    """Print an error message in one line; nothing if typer has already shown the help."""
    text = " ".join(sentence.split())
    if text and context is not None:
        hint = f"ee '{context.command_path} --help'"
        text = f"{text} S{hint}" if text.endswith("?") else f"{text.rstrip('.')}; s{hint}"
    if text:
        note(text)
    return status


def _pipe_gone() -> int:
    """Exit quietly when the reader of the output is gone; the buffered output is discarded."""
    with suppress(BrokenPipeError):
        sys.stdout.close()
    return 1


def _flush_output() -> bool:
    """Write the buffered output; if that fails, discard it and return False.

    Otherwise Python would try again when it exits, and print an error of its own.
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
    # Each segment in use is an open file, and an older store has many segments.
    raise_file_limit()
    with standard_streams():
        status = execute(sys.argv[1:])
        if not sys.stdout.closed and not _flush_output():
            status = status or _refuse("cannot write the output", 3)
        sys.exit(status)


if __name__ == "__main__":
    run()
