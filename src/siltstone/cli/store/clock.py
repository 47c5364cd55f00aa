"""`siltstone clock`: the state of the store's clock, and the commands for after a jump.

The command asks a running broker. Without a broker, it reads or changes the directory itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from siltstone.broker.control.clock_watch import clock_document, refuse_held
from siltstone.cli.opening import note_recovery, open_reading, open_writing
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Name, Yes
from siltstone.cli.output.help import App
from siltstone.cli.output.output import confirm as ask_first
from siltstone.cli.output.output import counted, facts, say, show, show_json
from siltstone.clock import GuardedClock
from siltstone.manage.running import ask_broker, is_served
from siltstone.settings.quantities import format_duration, format_moment
from siltstone.store.directory import guarded_clock

app = App("Show and correct the time of a store.", "siltstone clock status")


@app.command("status")
def status(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Show the time of the store and the clock of the machine.

    The command works beside a running broker. While the two clocks disagree, retention and expiry
    wait, and the command shows until when.

    $ siltstone clock status
    $ siltstone clock status --json
    """
    document = _document(data)
    if json:
        show_json(document)
    else:
        _show(document)


@app.command("confirm")
def confirm(yes: Yes = False, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Trust the clock of the machine again after it jumped.

    The command works beside a running broker. Retention and expiry then follow the clock, and
    remove messages and sessions at once if their time has come.

    $ siltstone clock confirm
    $ siltstone clock confirm --yes
    """
    before = _document(data)
    if not before["held"]:
        document = before
    else:
        if not yes:
            ask_first(f"trust the clock, which says {format_moment(before['wall_clock_us'])}")
        if is_served(data):
            document = ask_broker(data, {"do": "clock-confirm"})
        else:
            document = _confirm_here(data)
    if json:
        show_json(document)
    elif not before["held"]:
        say("the clock is trusted already")
    else:
        say(f"the clock is trusted; the time of the store is {_moment(document)}")


@app.command("reset")
def reset(name: Name, yes: Yes = False, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Let new rows have the time of the clock again.

    Use it after rows were stored with times in the future. The command works beside a running
    broker. It starts a new generation. Existing rows keep their times, and retention counts their
    age from now.

    $ siltstone clock reset messages
    $ siltstone clock reset messages --yes
    """
    if not yes:
        ask_first(f"begin a new generation of database {name!r}, with times of the clock")
    if is_served(data):
        shards = int(ask_broker(data, {"do": "clock-reset", "database": name}))
    else:
        shards = _reset_here(data, name)
    if json:
        show_json({"database": name, "shards": shards})
    elif shards:
        say(f"new rows of {name} have the time of the clock again, in {counted(shards, 'shard')}")
    else:
        say(f"{name} has no rows with a time ahead of the clock; nothing was changed")


def _document(data: Path) -> dict[str, Any]:
    if is_served(data):
        answer: dict[str, Any] = ask_broker(data, {"do": "clock-status"})
        return answer
    clock = guarded_clock()
    with open_reading(data) as store:
        seen = store.last_seen()
        if seen is not None:
            clock.resume(seen)
        for name in store.names():
            store.database(name)
        return clock_document(clock.state(), store.newest_us(), clock.jump_us)


def _confirm_here(data: Path) -> dict[str, Any]:
    with open_writing(data) as store:
        clock = store.clock
        assert isinstance(clock, GuardedClock), "a store that is opened without a clock has one"
        clock.confirm()
    return _document(data)


def _reset_here(data: Path, name: str) -> int:
    with open_writing(data) as store:
        clock = store.clock
        assert isinstance(clock, GuardedClock), "a store that is opened without a clock has one"
        refuse_held(clock.state())
        database = store.database(name)
        note_recovery(database)
        return database.restart_times()


def _moment(document: dict[str, Any]) -> str:
    return format_moment(document["store_time_us"])


def _show(document: dict[str, Any]) -> None:
    pairs = [
        ("time of the store", _moment(document)),
        ("clock", format_moment(document["wall_clock_us"])),
        ("state", document["state"]),
    ]
    ahead, absent = document["ahead_seconds"], document["absent_seconds"]
    if ahead:
        side = "ahead" if ahead > 0 else "behind"
        pairs.append(("the clock is", f"{format_duration(round(abs(ahead)))} {side}"))
    if absent:
        pairs.append(("not in use before", format_duration(round(absent))))
    if document["held"]:
        left = document["believed_in_seconds"]
        pairs.append(("held for", format_duration(round(document["held_for_seconds"]))))
        pairs.append(("held", "; ".join(document["holds"])))
        when = "when it has caught up" if left is None else f"in {format_duration(round(left))}"
        pairs.append(("trusted", when))
    for name, time_us in sorted(document["newest_row_us"].items()):
        pairs.append((f"newest row of {name}", format_moment(time_us)))
    show(facts(pairs))
    if document["state"] != "ok":
        say(document["text"])
