"""`siltstone snapshot`: write one now, list, look at, verify and compare them."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from time import monotonic, sleep
from typing import Annotated, Any, Final

import typer

from siltstone.cli.backup import SOURCE
from siltstone.cli.control import ask_broker, is_served
from siltstone.cli.opening import open_reading
from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output import add_row, counted, facts, say, show, show_json, table
from siltstone.cli.quantities import format_size
from siltstone.clock import SystemClock
from siltstone.errors import LockedError, NotFoundError, RetryError, SiltstoneError, UsageError
from siltstone.fs.api import File
from siltstone.fs.posix import PosixFileSystem, absolute_path, catches_signal, send_signal
from siltstone.kv.rocks import open_read_only
from siltstone.snapshot.backup import SNAPSHOTS, StoreSource
from siltstone.snapshot.contents import ContentsInMemory, NoContents
from siltstone.snapshot.differences import find_differences
from siltstone.snapshot.keeper import Keeper, link_target, list_snapshots, name_of
from siltstone.snapshot.loader import SnapshotReader, verify_snapshot
from siltstone.snapshot.totals import Summary

app = typer.Typer(
    no_args_is_help=True, help="Write, list, look at, verify and compare snapshots of all state."
)
_POLL_SECONDS: Final = 0.05

Which = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A serial, a file, or 'state' for the one that a start would load.",
        show_default=False,
    ),
]


def _find(data: Path, which: str) -> PurePath:
    """Return the file of a snapshot. Raises: NotFoundError."""
    directory = absolute_path(data) / SNAPSHOTS
    if which == "state":
        name = link_target(PosixFileSystem(), directory)
        if not name:
            raise NotFoundError(f"there is no snapshot in {data}")
        return directory / name
    if which.isdecimal():
        return directory / name_of(int(which))
    return absolute_path(which)


def _open(data: Path, which: str) -> File:
    return PosixFileSystem().open(_find(data, which), writable=False)


def _time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@app.command("list")
def list_all(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """List the snapshots of a data directory, oldest first."""
    directory = absolute_path(data) / SNAPSHOTS
    found = (
        list_snapshots(PosixFileSystem(), directory) if PosixFileSystem().exists(directory) else []
    )
    linked = link_target(PosixFileSystem(), directory) if found else ""
    documents: list[dict[str, Any]] = [
        {
            "serial": serial,
            "file": name_of(serial),
            "created": _created(directory / name_of(serial)),
            "size_bytes": size_bytes,
            "state": name_of(serial) == linked,
        }
        for serial, size_bytes in found
    ]
    if json:
        show_json(documents)
        return
    if not documents:
        say(f"no snapshots in {data}")
        return
    listed = table("serial", "created", "size", "state", right=("serial", "size"))
    for each in documents:
        mark = "<- state" if each["state"] else ""
        size = format_size(each["size_bytes"])
        add_row(listed, (str(each["serial"]), each["created"] or "damaged", size, mark))
    show(listed)


def _created(path: PurePath) -> str | None:
    try:
        with PosixFileSystem().open(path, writable=False) as file:
            return _time(SnapshotReader(file, NoContents()).about.created_us)
    except SiltstoneError:
        return None


@app.command("show")
def show_one(which: Which = "state", data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Check a snapshot and show what it holds."""
    with _open(data, which) as file:
        summary = verify_snapshot(file)
    document = _document(summary)
    if json:
        show_json(document)
        return
    shown = [
        ("created", _time(summary.about.created_us)),
        ("of", f"{summary.about.source}, by {summary.about.writer}"),
        ("size", f"{format_size(summary.size_bytes)}, {format_size(summary.plain_bytes)} plain"),
        ("contents", f"{summary.contents:,}, {format_size(summary.content_bytes)}"),
        ("digest", summary.digest.hex()),
    ]
    show(facts(shown + [(name, f"{count:,}") for name, count in summary.counts.items()]))


def _document(summary: Summary) -> dict[str, Any]:
    return {
        "serial": summary.about.serial,
        "created_us": summary.about.created_us,
        "source": summary.about.source,
        "writer": summary.about.writer,
        "size_bytes": summary.size_bytes,
        "plain_bytes": summary.plain_bytes,
        "contents": summary.contents,
        "content_bytes": summary.content_bytes,
        "digest": summary.digest.hex(),
        "records": summary.counts,
    }


@app.command("verify")
def verify(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SNAPSHOT…",
            help="Serials, files, or 'state'; without any, all of the data directory.",
            show_default=False,
        ),
    ] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Check every record of snapshots; status 1 says that one is damaged."""
    directory = absolute_path(data) / SNAPSHOTS
    if which is None:
        found = (
            list_snapshots(PosixFileSystem(), directory)
            if PosixFileSystem().exists(directory)
            else []
        )
        which = [str(serial) for serial, _ in found]
    problems: dict[str, str | None] = {}
    for each in which:
        try:
            with _open(data, each) as file:
                verify_snapshot(file)
            problems[each] = None
        except NotFoundError:
            raise
        except SiltstoneError as exc:
            problems[each] = str(exc)
    if json:
        show_json(
            [{"snapshot": name, "problem": problem} for name, problem in problems.items()],
        )
    else:
        for name, problem in problems.items():
            say(f"{name}: {problem or 'whole'}")
        say(counted(len(problems), "snapshot") + " checked")
    if any(problems.values()):
        raise typer.Exit(1)


@app.command("diff")
def diff(old: Which, new: Which, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Tell what two snapshots do not have in common; status 1 says that there is something."""
    with ExitStack() as closing:
        first, second = (closing.enter_context(_open(data, which)) for which in (old, new))
        found = find_differences(first, second, ContentsInMemory(), ContentsInMemory())
    marks = {"added": "+", "removed": "-", "changed": "~"}
    if json:
        show_json([{"kind": d.kind, "name": d.name, "change": d.change} for d in found])
    else:
        for each in found:
            say(f"{marks[each.change]} {each.kind} {each.name}")
    if found:
        raise typer.Exit(1)


@app.command("now")
def now(
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for a broker.")
    ] = 600.0,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Let the broker that uses a data directory write a snapshot; without one, write it here."""
    open_reading(data).close()
    directory = absolute_path(data)
    try:
        lock = PosixFileSystem().lock(directory / "LOCK")
    except LockedError:
        if is_served(Path(directory)):
            name = str(ask_broker(Path(directory), {"do": "snapshot"}, timeout))
        else:
            name = _ask_broker(directory, timeout)
    else:
        try:
            name = _write_here(directory)
        finally:
            lock.release()
    if json:
        show_json({"file": name})
    else:
        say(f"wrote {name}")


def _write_here(directory: PurePath) -> str:
    """Write a snapshot of a store that nobody has open. Raises: UsageError for no store."""
    fs = PosixFileSystem()
    source = StoreSource(fs, directory, partial(open_read_only, fs))
    if _is_of_broker(directory):
        raise UsageError(
            "a broker has its state in memory here, and none is running: its last snapshot stands"
        )
    keeper = Keeper(fs, SystemClock(), directory / SNAPSHOTS, directory / "quarantine")
    try:
        return keeper.save(source.records(), source=SOURCE).path.name
    finally:
        keeper.close()


def _is_of_broker(directory: PurePath) -> bool:
    snapshots = directory / SNAPSHOTS
    if not PosixFileSystem().exists(snapshots) or not link_target(PosixFileSystem(), snapshots):
        return False
    with PosixFileSystem().open(
        snapshots / link_target(PosixFileSystem(), snapshots), writable=False
    ) as file:
        return SnapshotReader(file, NoContents()).about.source != SOURCE


def _ask_broker(directory: PurePath, timeout: float) -> str:
    """Send SIGUSR1, and wait until the link was moved."""
    holder = PosixFileSystem().read(directory / "LOCK").decode("ascii", "replace").strip()
    if not holder.isdecimal() or not catches_signal(int(holder), signal.SIGUSR1):
        raise LockedError(f"the directory is open elsewhere, and not by a broker: pid={holder}")
    snapshots = directory / SNAPSHOTS
    before = (
        link_target(PosixFileSystem(), snapshots) if PosixFileSystem().exists(snapshots) else ""
    )
    send_signal(int(holder), signal.SIGUSR1)
    deadline = monotonic() + timeout
    while monotonic() < deadline:
        if (
            PosixFileSystem().exists(snapshots)
            and (name := link_target(PosixFileSystem(), snapshots)) != before
        ):
            return name
        sleep(_POLL_SECONDS)
    raise RetryError(f"no snapshot came within {timeout:g} s; see the broker's log: pid={holder}")
