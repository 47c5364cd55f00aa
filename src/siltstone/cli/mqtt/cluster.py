"""`siltstone cluster`: the cluster that the running broker belongs to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from siltstone import Store
from siltstone.cli.opening import open_writing
from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output.help import App
from siltstone.cli.output.output import add_row, say, show, show_json, table
from siltstone.cluster.epochs import read_epoch, write_epoch
from siltstone.errors import RetryError, UsageError
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.manage.running import ask_broker, is_served

app = App("Show and change the cluster of the broker.", "siltstone cluster status")

_POLL_SECONDS: Final = 0.2
_WAIT_DEFAULT: Final = 60.0

SiteArgument = Annotated[
    str,
    typer.Argument(metavar="SITE", help="Name of the site.", show_default="the site of the broker"),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0.0,
        help="Longest time to wait for the end of the move. 0: do not wait.",
    ),
]
Ready = Annotated[
    bool,
    typer.Option(
        "--ready",
        help="Print nothing. Exit with status 0 if the site has read all shards and they have "
        "leaders, else 1.",
    ),
]
Document = dict[str, Any]


@app.command("status")
def status(data: Data = DATA_DEFAULT, json: Json = False, ready: Ready = False) -> None:
    """Show the sites, and the leader and the replicas of each shard.

    $ siltstone cluster status
    $ siltstone cluster status --json
    $ siltstone cluster status --ready
    """
    found = _status(data)
    if ready:
        raise typer.Exit(0 if found["ready"] else 1)
    if json:
        show_json(found)
        return
    problem = f"; {found['problem']}" if found["problem"] else ""
    say(f"cluster {found['cluster']}, seen from site {found['site']}{problem}")
    sites = table("site", "state", "role", "zone", "replicas", "leads")
    for name, site in found["sites"].items():
        counts = (str(site["replicas"]), str(site["leads"]))
        add_row(sites, (name, site["state"], site["role"], site["zone"], *counts))
    show(sites)
    shards = table("shard", "leader", "term", "site", "in sync", "status", "messages", "behind")
    for key, shard in found["shards"].items():
        for number, (name, replica) in enumerate(shard["replicas"].items()):
            first = (key, shard["leader"] or "none", str(shard["term"]))
            add_row(
                shards,
                (
                    *(("", "", "") if number else first),
                    name,
                    "observes" if replica["observes"] else "yes" if replica["in_sync"] else "no",
                    _progress(replica),
                    f"{replica['sequence']:,}",
                    f"{replica['lag']:,}",
                ),
            )
    show(shards)
    for key, shard in found["shards"].items():
        if shard["transition"]:
            say(f"{key}: {_transition(shard['transition'])}")
    for alarm in found["alarms"]:
        say(f"{alarm['kind']}, {alarm['place']}: {alarm['text']}")


@app.command("join")
def join(site: SiteArgument = "", data: Data = DATA_DEFAULT) -> None:
    """Place shards at a site and let it lead; end a drain.

    $ siltstone cluster join d
    """
    _change(data, site, "member")


@app.command("drain")
def drain(site: SiteArgument = "", data: Data = DATA_DEFAULT, wait: Wait = _WAIT_DEFAULT) -> None:
    """Move all leaders away from a site that is to be stopped.

    The site keeps its replicas.

    $ siltstone cluster drain b
    """
    _change(data, site, "draining")
    _wait(data, site, wait, "still leads shards", lambda found: not found["leads"])


@app.command("leave")
def leave(site: SiteArgument = "", data: Data = DATA_DEFAULT, wait: Wait = _WAIT_DEFAULT) -> None:
    """Move all leaders and all replicas away from a site.

    Afterwards you can stop the site for good.

    $ siltstone cluster leave b
    """
    _change(data, site, "leaving")
    _wait(data, site, wait, "still has replicas", lambda found: found["role"] == "observer")


@app.command("forget")
def forget(
    site: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")],
    data: Data = DATA_DEFAULT,
) -> None:
    """Give up a site that will not return: other sites get its replicas.

    $ siltstone cluster forget b
    """
    _change(data, site, "gone")


@app.command("export-local")
def export_local(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Databases.", show_default="all replicated ones"),
    ] = None,
    data: Data = DATA_DEFAULT,
) -> None:
    """Make replicated databases local, at a stopped site or in a backup.

    They keep the rows of this site. Afterwards the directory no longer belongs to the cluster.

    $ siltstone cluster export-local --data restored
    """
    with open_writing(data) as store:
        databases, maps = store.names(), store.keyvalue_names()
        for name in names or [*databases, *maps]:
            # One of each kind may have this name. For an unknown one, there is an error.
            was = [store.make_local(name)] if name in databases or name not in maps else []
            was += [store.make_keyvalue_local(name)] if name in maps else []
            if any(was):
                say(f"{name} is a local database now")
            elif names:
                say(f"{name} was a local database already")


@app.command("import-local")
def import_local(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Local databases.")],
    data: Data = DATA_DEFAULT,
) -> None:
    """Make local databases replicated ones, at a stopped site.

    They keep their rows, serials and times. The other sites copy them when this site starts with
    its cluster. The cluster must not have a database of the same name: start this site before the
    others, or together with them. `export-local` cancels it before that start.

    $ siltstone cluster import-local messages --data a
    """
    with open_writing(data) as store:
        for name in names:
            if store.make_replicated(name):
                say(f"{name} becomes a replicated database when this site starts with its cluster")
            else:
                say(f"{name} is a replicated database already")


@app.command("refound")
def refound(
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch", metavar="N", min=2, help="Begin this epoch.", show_default="only show"
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Copy everything from the site that began the epoch."),
    ] = False,
    data: Data = DATA_DEFAULT,
) -> None:
    """Begin a cluster again after it lost most of its seeds for good.

    Stop all sites that are left. Without --epoch, the command shows how far this site has come:
    run it at each of them, and choose the site with the most records in every shard. Run it there
    with --epoch N, where N is the present epoch plus 1. Run it at the other sites with --epoch N
    --follow. Then start the chosen site, and the others after it, with `cluster.epoch = N` and the
    new seeds. New sites only need these settings.

    Rows that the chosen site has not read are lost, even if they were acknowledged. The next serial
    leaves a gap, so that the serial of a lost row is not used again. Seeds of an earlier epoch are
    refused when they return.

    $ siltstone cluster refound --data a
    $ siltstone cluster refound --epoch 2 --data a
    $ siltstone cluster refound --epoch 2 --follow --data b
    """
    if follow and epoch is None:
        raise UsageError("--follow needs --epoch: the one that the other site began")
    directory = StorePaths(absolute_path(data)).cluster
    fs = PosixFileSystem()
    with open_writing(data) as store:
        known = read_epoch(fs, directory)
        if known is None:
            raise UsageError(
                f"{data} has never been a site of a cluster; name another directory with --data"
            )
        if epoch is None:
            _show_progress(store, known)
            return
        if epoch < known:
            raise UsageError(f"this site has begun epoch {known}: expected --epoch {known + 1}")
        store.check_begins_anew()
        # From here on, the site is refused by the sites of the epoch before.
        write_epoch(fs, directory, epoch)
        for name in store.names():
            if store.begin_anew(name, follows=follow):
                what = "is copied from the site that began it" if follow else "begins with its rows"
                say(f"{name}: epoch {epoch} {what}")
    say(f"start this site with cluster.epoch = {epoch}")


def _show_progress(store: Store, epoch: int) -> None:
    rows = table("shard", "epoch", "term", "records", "chain", "rows")
    for name in store.names():
        slabs = store.database(name).slabs()
        for mark in store.progress(name):
            position, shard = mark.position, mark.position.identity.shard
            count = sum(slab.rows for slab in slabs if slab.slab.shard == shard)
            numbers = (str(position.identity.epoch), str(position.term), f"{position.index:,}")
            cells = (f"{name}/{shard}", *numbers, position.chain.hex()[:8], f"{count:,}")
            add_row(rows, cells)
    show(rows)
    say(
        f"This site belongs to epoch {epoch}. Of all sites that are left, choose the one with the "
        f"most records: 'siltstone cluster refound --epoch {epoch + 1}' begins with its rows. "
        f"Acknowledged rows that it does not have are lost then."
    )


@app.command("move-shard")
def move_shard(
    shard: Annotated[
        str,
        typer.Argument(
            metavar="DATABASE/SHARD", help="Shard, as listed by 'siltstone cluster status'."
        ),
    ],
    old: Annotated[
        str, typer.Option("--from", metavar="SITE", help="Site that gives up its replica.")
    ] = "",
    new: Annotated[
        str, typer.Option("--to", metavar="SITE", help="Site that gets the replica.")
    ] = "",
    leader: Annotated[
        str | None,
        typer.Option("--leader", metavar="SITE", help="Site that shall lead. Empty: any site."),
    ] = None,
    data: Data = DATA_DEFAULT,
) -> None:
    """Move a replica of a shard to another site, or choose the leader.

    $ siltstone cluster move-shard messages/0 --from b --to d
    $ siltstone cluster move-shard messages/0 --leader a
    """
    if bool(old) != bool(new) or not (old or leader is not None):
        raise UsageError("expected --from SITE with --to SITE, or --leader SITE, or both")
    request = {"do": "cluster-move", "shard": shard, "old": old, "new": new, "leader": leader}
    _ask(data, request)


def _ask(data: Path, request: Document) -> Any:
    if not is_served(data):
        raise UsageError(f"no broker is running on {data}; start it with 'siltstone serve'")
    return ask_broker(data, request)


def _status(data: Path) -> Document:
    found: Document = _ask(data, {"do": "cluster-status"})
    return found


def _change(data: Path, site: str, role: str) -> None:
    _ask(data, {"do": "cluster-site", "site": site, "role": role})


def _wait(
    data: Path, site: str, seconds: float, still: str, is_done: Callable[[Document], bool]
) -> None:
    """Wait until a site is as it should be. Raises: RetryError."""
    deadline = time.monotonic() + seconds
    while seconds:
        found = _status(data)
        name = site or found["site"]
        if is_done(found["sites"][name]):
            return
        if time.monotonic() >= deadline:
            raise RetryError(
                f"site {name!r} {still} after {seconds:g} s: see 'siltstone cluster status'"
            )
        time.sleep(_POLL_SECONDS)


def _progress(replica: Document) -> str:
    text: str = replica["status"]
    if replica["copy_bytes"]:
        return f"{text}, copied {replica['copied_bytes']:,} of {replica['copy_bytes']:,} bytes"
    return f"{text}: {replica['reason']}" if replica["reason"] else text


def _transition(change: Document) -> str:
    parts = [f"adds {name}" for name in change["add"]]
    parts += [f"removes {name}" for name in change["remove"]]
    if change["leader"]:
        parts.append(f"{change['leader']} is asked to lead")
    return ", ".join(parts)
