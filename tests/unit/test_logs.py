from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from siltstone.logs import log, start_logging

CREATED = 1_700_000_000.25
MOMENT = "2023-11-14T22:13:20.250Z"

Start = Callable[..., io.StringIO]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Give the logs to a text, at a time that stands still; leave no handler behind."""
    monkeypatch.setattr("time.time", lambda: CREATED)
    monkeypatch.setattr("time.time_ns", lambda: int(CREATED * 1e9))
    root, ours = logging.getLogger(), logging.getLogger("siltstone")
    before, level = list(root.handlers), ours.level

    def run(form: Literal["human", "json"] = "human", level: str = "info") -> io.StringIO:
        stream = io.StringIO()
        start_logging(level=level, form=form, stream=stream)
        return stream

    yield run
    root.handlers[:] = before
    ours.setLevel(level)


LOGGER = logging.getLogger("siltstone.broker")


def test_people_read_time_level_event_and_facts(start: Start) -> None:
    out = start()
    log(LOGGER, logging.INFO, "client_connected", client_id="c1", keep_alive=60, clean=True)
    log(LOGGER, logging.WARNING, "disk_slow", seconds=0.5, user=None)
    assert out.getvalue() == (
        f"{MOMENT} info    client_connected client_id=c1 keep_alive=60 clean=true\n"
        f"{MOMENT} warning disk_slow seconds=0.5 user=none\n"
    )


def test_programs_read_an_object_a_line(start: Start) -> None:
    out = start("json")
    log(LOGGER, logging.INFO, "client_connected", client_id="é\n", keep_alive=60, user=None)
    log(LOGGER, logging.ERROR, "refused", time="late", topic=b"a/\xff")
    assert out.getvalue().isascii()
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {
            "time": MOMENT,
            "level": "info",
            "event": "client_connected",
            "client_id": "é\n",
            "keep_alive": 60,
            "user": None,
        },
        {"time": MOMENT, "level": "error", "event": "refused", "topic": "a/\\xff"},
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "x"', '"say \\"x\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("x\n2026 error   forged", '"x\\n2026 error   forged"'),
        ("\x1b[2J\x7f\x85\u2028\u202e", '"\\x1b[2J\\x7f\\x85\\u2028\\u202e"'),
        ("größe", "größe"),
        (b"\x00\xff", '"\\x00\\\\xff"'),
        ("x" * 301, "x" * 300 + "…"),
    ],
)
def test_a_value_can_neither_forge_a_line_nor_move_the_cursor(
    start: Start, value: object, shown: str
) -> None:
    out = start()
    log(LOGGER, logging.INFO, "seen", client_id=value)
    assert out.getvalue() == f"{MOMENT} info    seen client_id={shown}\n"


def test_a_secret_is_masked_by_its_name(start: Start) -> None:
    facts = {"password": "hunter2", "hook_token": b"abc", "password_file": "users"}
    out = start()
    log(LOGGER, logging.INFO, "login", **facts)
    assert out.getvalue() == (
        f"{MOMENT} info    login password=*** hook_token=*** password_file=users\n"
    )
    out = start("json")
    log(LOGGER, logging.INFO, "login", **facts)
    assert json.loads(out.getvalue()) == {
        "time": MOMENT,
        "level": "info",
        "event": "login",
        "password": "***",
        "hook_token": "***",
        "password_file": "users",
    }


def test_less_important_events_are_left_out(start: Start) -> None:
    out = start(level="warning")
    log(LOGGER, logging.INFO, "not told")
    log(LOGGER, logging.WARNING, "told")
    assert out.getvalue() == f"{MOMENT} warning told\n"


def test_debug_is_for_our_own_events_only(start: Start) -> None:
    out = start(level="debug")
    log(LOGGER, logging.DEBUG, "ours")
    logging.getLogger("asyncio").debug("theirs")
    logging.getLogger("asyncio").warning("took %s\nlong", "very")
    assert out.getvalue() == (
        f"{MOMENT} debug   ours\n{MOMENT} warning took very\\nlong logger=asyncio\n"
    )


def test_a_second_start_replaces_the_first(start: Start) -> None:
    first, second = start(), start()
    log(LOGGER, logging.INFO, "once")
    assert (first.getvalue(), second.getvalue()) == ("", f"{MOMENT} info    once\n")


def fail() -> None:
    try:
        raise ValueError("bad\n2026-01-31 forged\x1b")
    except ValueError:
        LOGGER.exception("connection_failed", extra={"facts": {"client_id": "c1"}})


def test_a_traceback_is_indented_below_its_event(start: Start) -> None:
    out = start()
    fail()
    lines = out.getvalue().splitlines()
    assert lines[0] == f"{MOMENT} error   connection_failed client_id=c1"
    assert lines[1] == "    Traceback (most recent call last):"
    assert lines[-2:] == ["    ValueError: bad", "    2026-01-31 forged\\x1b"]
    assert all(line.startswith("    ") for line in lines[1:])


def test_a_traceback_is_a_field_for_programs(start: Start) -> None:
    out = start("json")
    fail()
    (line,) = out.getvalue().splitlines()
    document = json.loads(line)
    assert document["traceback"].endswith("ValueError: bad\n2026-01-31 forged\x1b")
    assert {key: document[key] for key in ("level", "event", "client_id")} == {
        "level": "error",
        "event": "connection_failed",
        "client_id": "c1",
    }
