"""`siltstone cluster`: the cluster that the running broker belongs to."""

from __future__ import annotations

from typing import Any

from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output.help import App
from siltstone.cli.output.output import add_row, say, show, show_json, table
from siltstone.errors import UsageError
from siltstone.manage.running import ask_broker, is_served

app = App("Show the cluster of the broker.", "siltstone cluster status")


@app.command("status")
def status(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Show the sites, and the leader and the replicas of each shard.

    $ siltstone cluster status
    $ siltstone cluster status --json
    """
    if not is_served(data):
        raise UsageError(f"no broker is running on {data}; start it with 'siltstone serve'")
    found: dict[str, Any] = ask_broker(data, {"do": "cluster-status"})
    if json:
        show_json(found)
        return
    problem = f"; {found['problem']}" if found["problem"] else ""
    say(f"cluster {found['cluster']}, seen from site {found['site']}{problem}")
    sites = table("site", "state")
    for name, site in found["sites"].items():
        add_row(sites, (name, site["state"]))
    show(sites)
    shards = table("shard", "leader", "term", "replica", "in sync", "status", "messages", "behind")
    for key, shard in found["shards"].items():
        for number, (name, replica) in enumerate(shard["replicas"].items()):
            first = (key, shard["leader"] or "none", str(shard["term"]))
            reason = f": {replica['reason']}" if replica["reason"] else ""
            if replica["copy_bytes"]:
                reason = f", copied {replica['copied_bytes']:,} of {replica['copy_bytes']:,} bytes"
            add_row(
                shards,
                (
                    *(("", "", "") if number else first),
                    name,
                    "yes" if replica["in_sync"] else "no",
                    f"{replica['status']}{reason}",
                    f"{replica['sequence']:,}",
                    f"{replica['lag']:,}",
                ),
            )
    show(shards)
