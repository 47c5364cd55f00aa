from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.fs.publish import create_directories
from siltstone.session.archive.store import ARCHIVE_SETTINGS
from siltstone.store.directory import Store
from siltstone.store.kv.api import Changes
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.tx import catalog
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.command_line import DATA, CommandLine
from tests.support.engines import Engines
from tests.support.tx_builders import World

PLACES = {"bank": DATA / "kv" / "bank", "log": DATA / "kv" / "log", "commits": DATA / "commits"}


def rows_of(rows: list[tuple[str, bytes, int | None]], settings: KeyValueSettings) -> MemoryEngine:
    """Return what a database leaves that has these rows."""
    with World(**settings.to_json() | {"thresholds": settings.thresholds}) as world:
        for topic, value, time_us in rows:
            with world.database.transaction() as tx:
                if time_us is None:
                    tx.write(topic, value)
                else:
                    tx.write(topic, value, time_us)
        return world.memory.reopened()


@pytest.fixture
def databases(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    siltstone.store().close()
    engines = {
        PLACES["bank"]: rows_of(
            [("account/ann", b"100", None), ("account/bob", b"\xff", None), ("x", b"", None)],
            KeyValueSettings(timed=False),
        ),
        PLACES["log"]: rows_of([("a", b"1", 1), ("a", b"2", 2_000_000)], KeyValueSettings()),
        PLACES["commits"]: rows_of([], ARCHIVE_SETTINGS),
    }

    def opened(path: PurePath) -> MemoryEngine:
        return engines[path].reopened()

    for place in PLACES.values():
        create_directories(siltstone.fs, place)
        siltstone.fs.create(place / "CURRENT").close()
    monkeypatch.setattr("siltstone.cli.store.kv.open_engine", opened)
    monkeypatch.setattr("siltstone.cli.store.verify.open_engine", opened)
    return siltstone


def test_all_are_listed(databases: CommandLine) -> None:
    outcome = databases("kv", "list")
    assert (outcome.status, outcome.err) == (0, "")
    header, _, *rows = (line.split() for line in outcome.lines)
    assert header == ["database", "kind", "shards", "slabs", "size"]
    assert [row[:-2] for row in rows] == [
        ["bank", "plain", "map", "1", "1"],
        ["log", "by", "time", "1", "1"],
        ["commits", "plain", "map", "1", "1"],
    ]
    documents = databases("kv", "list", "--json").document
    assert [(each["database"], each["timed"], each["shards"]) for each in documents] == [
        ("bank", False, 1),
        ("log", True, 1),
        ("commits", False, 1),
    ]


def test_a_directory_without_any_says_so(siltstone: CommandLine) -> None:
    siltstone.store().close()
    assert siltstone("kv", "list").out == "no key-value databases in /data\n"


def test_rows_are_printed_by_filter_time_and_number(databases: CommandLine) -> None:
    outcome = databases("kv", "read", "bank", "--filter", "account/+")
    header, *rows = (line.split() for line in outcome.lines)
    # Each is a stream of its own here, and streams come in the order of their ids.
    assert [header, *sorted(rows)] == [
        ["topic", "value"],
        ["account/ann", "100"],
        ["account/bob", "base64:/w=="],
    ]
    lines = databases("kv", "read", "log", "--json").lines
    assert lines == [
        '{"topic": "a", "timestamp": "1970-01-01T00:00:00.000001Z", "value": "1"}',
        '{"topic": "a", "timestamp": "1970-01-01T00:00:02.000000Z", "value": "2"}',
    ]
    assert databases("kv", "read", "log", "--json", "--since", "1").lines == lines[1:]
    assert databases("kv", "read", "log", "--json", "--until", "1").lines == lines[:1]
    assert databases("kv", "read", "log", "--json", "--limit", "1").lines == lines[:1]


def test_a_value_is_printed_as_it_is_and_the_newest_of_many(databases: CommandLine) -> None:
    assert databases("kv", "get", "bank", "account/ann").out == "100"
    assert databases("kv", "get", "log", "a").out == "2"
    assert databases("kv", "get", "bank", "account/bob", "--json").document == {
        "topic": "account/bob",
        "value_base64": "/w==",
    }


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (
            ("get", "bank", "none"),
            "database 'bank' has no row of topic 'none'; 'siltstone kv read bank' shows all",
        ),
        (
            ("get", "bank", "account/#"),
            "topic must not have the wildcards + and #: topic='account/#'",
        ),
        (("get", "bank", "a\udcff"), "topic is not valid UTF-8: topic='a\\\\xff' offset=1"),
        (
            ("read", "nope"),
            "key-value database 'nope' does not exist in /data (databases: bank, log, commits)",
        ),
    ],
)
def test_what_is_not_there_is_told(
    databases: CommandLine, args: tuple[str, ...], complaint: str
) -> None:
    outcome = databases("kv", *args)
    assert (outcome.status, outcome.err) == (2, f"siltstone: {complaint}\n")


@pytest.fixture
def engines(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    defaults = Store.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "open_engine", made.open_writing)
    monkeypatch.setattr("siltstone.cli.store.kv.open_engine", made.open_reading)
    return made


def test_a_database_is_created_with_its_settings_and_dropped(
    siltstone: CommandLine, engines: Engines
) -> None:
    outcome = siltstone("kv", "create", "bank", "--map", "--shards", "2", "--quota", "1 MiB")
    assert outcome.lines == ["created key-value database bank in /data"]
    timed = siltstone("kv", "create", "log", "--retain", "30d", "--json").document
    with siltstone.store() as store:
        assert store.keyvalue_names() == ["bank", "log"]
        assert store.keyvalue("bank").settings == KeyValueSettings(
            timed=False, shards=2, quota_bytes=1 << 20
        )
        settings = KeyValueSettings(retain_seconds=30 * 86400.0)
        assert store.keyvalue("log").settings == settings
        with store.keyvalue("log").transaction() as tx:
            tx.write("a", b"1")
    assert timed == {"database": "log", "settings": settings.to_json()}
    assert siltstone("kv", "drop", "log", "--yes").lines == ["dropped key-value database log"]
    with siltstone.store() as store:
        assert store.keyvalue_names() == ["bank"]


def test_a_dropped_copy_of_a_replicated_database_comes_back(
    siltstone: CommandLine, engines: Engines
) -> None:
    siltstone("kv", "create", "bank", "--map")
    engine = engines.open_writing(PLACES["bank"])
    settings = Changes()
    catalog.put_settings(settings, KeyValueSettings(timed=False, backend="replicated"))
    engine.write(settings)
    engine.close()
    outcome = siltstone("kv", "drop", "bank", "--yes")
    assert (outcome.status, outcome.out) == (0, "dropped key-value database bank\n")
    assert outcome.err.startswith("siltstone: only the copy of this site is deleted: while the")


@pytest.mark.parametrize(
    ("args", "status", "complaint"),
    [
        (("create", "bank"), 2, "key-value database 'bank' exists already"),
        (("create", "x", "--map", "--retain", "1d"), 2, "--retain must be left out of a plain map"),
        (("create", "a/b"), 2, "the name of a database must have 1 to 100 letters"),
        (("create", "commits"), 2, "commits holds the positions of sessions"),
        (("drop", "commits"), 2, "commits holds the positions of sessions"),
        (("drop", "nope"), 2, "key-value database 'nope' does not exist in /data"),
        (("drop", "bank"), 2, "key-value database 'bank' has 1 row; pass --yes"),
    ],
)
def test_what_cannot_be_created_or_dropped_is_told_and_nothing_changes(
    siltstone: CommandLine,
    engines: Engines,
    args: tuple[str, ...],
    status: int,
    complaint: str,
) -> None:
    siltstone("kv", "create", "bank", "--map")
    with siltstone.store() as store, store.keyvalue("bank").transaction() as tx:
        tx.write("a", b"1")
    outcome = siltstone("kv", *args)
    assert (outcome.status, complaint in outcome.err) == (status, True), outcome.err
    with siltstone.store() as store:
        assert store.keyvalue_names() == ["bank"]
        assert store.keyvalue("bank").get("a") == b"1"


def test_verify_checks_them_too(databases: CommandLine) -> None:
    outcome = databases("verify", "--all")
    assert outcome.status == 0
    assert [line.split(" with ")[0] for line in outcome.lines] == [
        "kv/bank: whole; 3 rows in 1 slab",
        "kv/log: whole; 2 rows in 1 slab",
        "commits: whole; 0 rows in 1 slab",
    ]
    (document,) = databases("verify", "kv/bank", "--json").document
    assert (document["database"], document["slabs"], document["rows"]) == ("kv/bank", 1, 3)


def test_rows_are_put_and_deleted(siltstone: CommandLine, engines: Engines) -> None:
    siltstone("kv", "create", "bank", "--map")
    assert siltstone("kv", "put", "bank", "a/1", "10").lines == ["committed to bank"]
    assert siltstone("kv", "put", "bank", "a/2", stdin=b"\xff").status == 0
    first = siltstone("kv", "put", "bank", "a/3", "30", "--id", "x", "--json").document
    assert first == {"database": "bank", "serial": 3, "duplicate": False}
    again = siltstone("kv", "put", "bank", "a/3", "31", "--id", "x")
    assert again.lines == ["transaction x was committed before"]
    refused = siltstone("kv", "delete", "bank", "a/#")
    assert (refused.status, "pass --yes" in refused.err) == (2, True)
    assert siltstone("kv", "delete", "bank", "a/2", "--yes").status == 0
    with siltstone.store() as store:
        found = [(row.topic, row.value) for row in store.keyvalue("bank").read()]
    assert found == [("a/1", b"10"), ("a/3", b"30")]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("put", "nope", "a", "1"), "key-value database 'nope' does not exist in /data"),
        (("put", "bank", "a/+", "1"), "must not have the wildcards"),
        (("put", "bank", "a", "1", "--shard", "1"), "shard must be from 0 to 0, got 1"),
        (("put", "bank", "a", "1", "--id", ""), "a transaction id must not be empty"),
        (("put", "commits", "a", "1"), "commits holds the positions of sessions"),
        (("delete", "bank", "a/#/b", "--yes"), "#"),
    ],
)
def test_a_change_that_is_wrong_is_told(
    siltstone: CommandLine, engines: Engines, args: tuple[str, ...], complaint: str
) -> None:
    siltstone("kv", "create", "bank", "--map")
    outcome = siltstone("kv", *args)
    assert (outcome.status, complaint in outcome.err) == (2, True), outcome.err
