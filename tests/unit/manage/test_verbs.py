from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import NotFoundError, UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.manage.databases import ConfigureDatabase, CreateDatabase, NameDatabase
from siltstone.manage.sessions import NameSession
from siltstone.manage.verb import Host, RequiredRight, parse
from siltstone.manage.verbs import VERBS, run_verb
from siltstone.store.directory import Store
from siltstone.store.slab.settings import DatabaseSettings

SMALL = {"segment_bytes": 65536}


@pytest.fixture
def host() -> Iterator[Host]:
    with Store(PurePath("/data"), fs=MemoryFileSystem(), clock=ManualClock(1)) as store:
        yield Host(store=store, uses={"messages": "it is in use", "_retained": "it is in use"})


def test_every_verb_runs_somewhere() -> None:
    # The functions of the broker are in tests/unit/broker; a verb of the store needs its own.
    alone = [verb.name for verb in VERBS.values() if verb.where == "store" and verb.run is None]
    assert (alone, [name for name, verb in VERBS.items() if verb.name != name]) == ([], [])


def test_verbs_that_only_look_have_the_least_role() -> None:
    readers = {verb.name for verb in VERBS.values() if verb.role is RequiredRight.READ}
    assert {"groups", "count-retained", "clock-status"} <= readers
    assert not {"db-drop", "db-create", "seal"} & readers


def test_a_verb_of_the_broker_does_not_run_without_one(host: Host) -> None:
    with pytest.raises(UsageError, match=r"^kick needs a running broker"):
        run_verb(host, "kick", NameSession(client_id="a"))


def test_a_database_lives_by_verbs(host: Host) -> None:
    created = run_verb(host, "db-create", CreateDatabase(database="x", settings=SMALL))
    assert created.settings["segment_bytes"] == 65536
    changes = {"retain_seconds": 60.0}
    changed = run_verb(host, "db-set", ConfigureDatabase(database="x", changes=changes))
    assert (changed.settings, changed.pending) == (created.settings | changes, {})
    later = run_verb(
        host, "db-set", ConfigureDatabase(database="x", changes={"compression": "zstd"})
    )
    assert later.pending == {"compression": ["none"]}
    run_verb(host, "seal", NameDatabase(database="x"))
    assert [slab.state for slab in host.store.database("x").slabs()] == ["sealed", "current"]
    run_verb(host, "db-drop", NameDatabase(database="x"))
    assert host.store.names() == []
    with pytest.raises(NotFoundError):
        run_verb(host, "db-drop", NameDatabase(database="x"))


def test_a_database_that_the_process_needs_stays(host: Host) -> None:
    host.store.create("messages", DatabaseSettings(segment_bytes=65536))
    with pytest.raises(UsageError, match="'messages' cannot be dropped: it is in use"):
        run_verb(host, "db-drop", NameDatabase(database="messages"))
    with pytest.raises(UsageError, match="'_retained' cannot be sealed: it is in use"):
        run_verb(host, "seal", NameDatabase(database="_retained"))
    run_verb(host, "seal", NameDatabase(database="messages"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "the request lacks 'database'"),
        ({"database": 7}, "database: input should be a valid string, got 7"),
        ({"database": "x", "sets": {}}, "the request has an unknown field: sets"),
        ({"database": "x", "settings": []}, "settings: input should be a valid dictionary"),
    ],
)
def test_a_wrong_request_is_refused_by_the_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        parse(CreateDatabase, fields)
