"""`siltstone snapshot`: write a snapshot now; list, show, verify and compare snapshots."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from time import monotonic, sleep
from typing import Annotated, Any, Final

import typer

from siltstone.cli.files.backup import SOURCE
from siltstone.cli.opening import open_reading
from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output.help import App
from siltstone.cli.output.output import add_row, counted, facts, say, show, show_json, table
from siltstone.clock import SystemClock
from siltstone.errors import LockedError, NotFoundError, RetryError, SiltstoneError, UsageError
from siltstone.fs.api import File
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.fs.process import catches_signal, send_signal
from siltstone.manage.running import ask_broker, is_served
from siltstone.settings.quantities import format_size
from siltstone.snapshot.backup import BackupSource
from siltstone.snapshot.differences import find_differences
from siltstone.snapshot.directory import SnapshotDirectory, link_target, list_snapshots, name_of
from siltstone.snapshot.format.contents import ContentsInMemory, NoContents
from siltstone.snapshot.format.totals import Summary
from siltstone.snapshot.loader import SnapshotReader, verify_snapshot
from siltstone.store.kv.rocks import open_read_only
from siltstone.units import SECOND_US

app = App("Write, list, verify and compare snapshots of the state.", "siltstone snapshot list")
_POLL_SECONDS: Final = 0.05

Which = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="Serial, file, or 'state' for the snapshot that the next start loads.",
        show_default=False,
    ),
]


def _find(data: Path, which: str) -> PurePath:
    """Return the file of a snapshot. Raises: NotFoundError."""
    directory = StorePaths(absolute_path(data)).snapshots
    if which == "state":
        name = link_target(PosixFileSystem(), directory)
        if not name:
            raise NotFoundError(f"{data} has no snapshot; write one with 'siltstone snapshot now'")
        return directory / name
    if which.isdecimal():
        return directory / name_of(int(which))
    return absolute_path(which)


def _open(data: Path, which: str) -> File:
    fs, path = PosixFileSystem(), _find(data, which)
    if not fs.exists(path):
        raise NotFoundError(
            f"{data} has no snapshot {which}; 'siltstone snapshot list' shows all"
            if which.isdecimal()
            else f"cannot read {which}: the file does not exist"
        )
    return fs.open(path, writable=False)


def _time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / SECOND_US, UTC).strftime("%Y-%m-%d %H:%M:%S")


@app.command("list")
def list_all(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """List the snapshots, the oldest first.

    The command works beside a running broker.

    $ siltstone snapshot list
    """
    directory = StorePaths(absolute_path(data)).snapshots
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
    """Check a snapshot and show its contents.

    The command works beside a running broker.

    $ siltstone snapshot show
    $ siltstone snapshot show 3
    """
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
            help="Serials, files, or 'state'. Default: all snapshots of the data directory.",
            show_default=False,
        ),
    ] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Check every record of snapshots.

    The exit status is 1 if a snapshot is damaged, or if the link 'state' names a file that does not
    exist. The command works beside a running broker.

    $ siltstone snapshot verify
    $ siltstone snapshot verify 3 4
    """
    directory = StorePaths(absolute_path(data)).snapshots
    if which is None:
        found = (
            list_snapshots(PosixFileSystem(), directory)
            if PosixFileSystem().exists(directory)
            else []
        )
        which = [str(serial) for serial, _ in found]
        if _missing_state(directory) is not None:
            which.append("state")
    problems: dict[str, str | None] = {}
    for each in which:
        if each == "state" and (path := _missing_state(directory)) is not None:
            problems[each] = f"the file that the link names does not exist: path={path}"
            continue
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


def _missing_state(directory: PurePath) -> PurePath | None:
    """Return the file that the link names, if it does not exist."""
    name = link_target(PosixFileSystem(), directory)
    return None if not name or PosixFileSystem().exists(directory / name) else directory / name


@app.command("diff")
def diff(old: Which, new: Which, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Show the differences between two snapshots.

    The exit status is 1 if they differ. The command works beside a running broker.

    $ siltstone snapshot diff 3 4
    """
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
        float,
        typer.Option("--timeout", metavar="SECONDS", help="Longest time to wait for the broker."),
    ] = 600.0,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Write a snapshot now.

    A running broker writes it. Without a broker, the command writes it itself.

    $ siltstone snapshot now
    """
    open_reading(data).close()
    directory = absolute_path(data)
    try:
        lock = PosixFileSystem().lock(StorePaths(directory).lock)
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
    """Write a snapshot of a store that no process has open. Raises: UsageError for no store."""
    fs = PosixFileSystem()
    source = BackupSource(fs, directory, partial(open_read_only, fs))
    if _is_of_broker(directory):
        raise UsageError(
            "this is the data directory of a broker that keeps its state in memory; the broker is "
            "not running, so its last snapshot is current"
        )
    paths = StorePaths(directory)
    keeper = SnapshotDirectory(fs, SystemClock(), paths.snapshots, paths.quarantine)
    try:
        return keeper.save(source.records(), source=SOURCE).path.name
    finally:
        keeper.close()


def _is_of_broker(directory: PurePath) -> bool:
    snapshots = StorePaths(directory).snapshots
    if not PosixFileSystem().exists(snapshots) or not link_target(PosixFileSystem(), snapshots):
        return False
    with PosixFileSystem().open(
        snapshots / link_target(PosixFileSystem(), snapshots), writable=False
    ) as file:
        return SnapshotReader(file, NoContents()).about.source != SOURCE


def _ask_broker(directory: PurePath, timeout: float) -> str:
    """Send SIGUSR1 to the broker, and wait until the link has moved."""
    holder = PosixFileSystem().read(StorePaths(directory).lock).decode("ascii", "replace").strip()
    if not holder.isdecimal() or not catches_signal(int(holder), signal.SIGUSR1):
        raise LockedError(
            f"data directory {directory} is in use by process {holder}, which is not a broker; "
            f"stop that process"
        )
    snapshots = StorePaths(directory).snapshots
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
    raise RetryError(
        f"the broker wrote no snapshot within {timeout:g} s; see its log: pid={holder}"
    )
