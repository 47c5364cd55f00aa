"""`siltstone cluster`: the cluster that the running broker belongs to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from siltstone.cli.opening import open_writing
from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output.help import App
from siltstone.cli.output.output import add_row, say, show, show_json, table
from siltstone.errors import RetryError, UsageError
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
        "--wait", metavar="SECONDS", min=0.0, help="How long to wait until it is done. 0: not."
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

    Afterwards nothing needs it.

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

    They have what the site had. A directory that was exported does not belong to the cluster any
    more.

    $ siltstone cluster export-local --data restored
    """
    with open_writing(data) as store:
        for name in names or store.names():
            if store.make_local(name):
                say(f"{name} is a local database now")
            elif names:
                say(f"{name} was a local database already")


@app.command("move-shard")
def move_shard(
    shard: Annotated[str, typer.Argument(metavar="DATABASE/SHARD", help="Which shard.")],
    old: Annotated[
        str, typer.Option("--from", metavar="SITE", help="Site that gives up its replica.")
    ] = "",
    new: Annotated[str, typer.Option("--to", metavar="SITE", help="Site that gets it.")] = "",
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
