from __future__ import annotations

import pytest

from siltstone.errors import DiskError
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.command_line import DATA, CommandLine

EVERY_OPTION = {
    "--shards": "2",
    "--shard-by": "topic",
    "--threshold": "5,0,-1",
    "--segment-bytes": "128KiB",
    "--compression": "zstd",
    "--flush-interval": "20ms",
    "--idle-flush-interval": "1ms",
    "--max-items": "77",
    "--sync-interval": "2s",
    "--pending-bytes": "1MiB",
    "--topic-cache": "99",
    "--rotate": "1h",
    "--rotate-bytes": "1GiB",
    "--retain": "7d",
    "--retain-bytes": "20GiB",
    "--reclaim": "delivered",
    "--quota": "10GiB",
    "--reserve": "0",
    "--backend": "local",
}
EVERY_SETTING = DatabaseSettings(
    shards=2,
    shard_by="topic",
    thresholds=(5, 0, -1),
    segment_bytes=128 * 1024,
    compression="zstd",
    flush_interval=0.02,
    idle_flush_interval=0.001,
    max_items=77,
    sync_interval=2.0,
    pending_bytes_max=1024**2,
    topic_cache=99,
    rotate_seconds=3600.0,
    rotate_bytes=1024**3,
    retain_seconds=604_800.0,
    retain_bytes=20 * 1024**3,
    reclaim="delivered",
    quota_bytes=10 * 1024**3,
    reserve_bytes=0,
)


@pytest.fixture
def metrics(siltstone: CommandLine) -> CommandLine:
    siltstone.create("metrics")
    siltstone("append", "metrics", stdin=b'{"topic":"a","value":1}\n{"topic":"b","value":2}')
    return siltstone


def settings_of(siltstone: CommandLine, name: str = "metrics") -> DatabaseSettings:
    with siltstone.store(read_only=True) as store:
        return store.database(name).settings


def test_every_setting_can_be_given_when_a_database_is_created(siltstone: CommandLine) -> None:
    args = [text for option in EVERY_OPTION.items() for text in option]
    outcome = siltstone("db", "create", "metrics", *args, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.document == {"database": "metrics", "settings": EVERY_SETTING.to_json()}
    assert settings_of(siltstone) == EVERY_SETTING


def test_a_replicated_database_needs_a_cluster(siltstone: CommandLine) -> None:
    outcome = siltstone("db", "create", "metrics", "--backend", "replicated")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == (
        "siltstone: a database with the backend 'replicated' needs a cluster, and this store does "
        "not belong to one: use the backend 'local'\n"
    )
    other = siltstone("db", "create", "metrics", "--backend", "raft")
    assert (other.status, other.err) == (
        2,
        "siltstone: --backend must be one of local, replicated: --backend='raft'\n",
    )
    with siltstone.store() as store:
        assert store.names() == []


def test_a_database_is_created_once(siltstone: CommandLine) -> None:
    first = siltstone("db", "create", "metrics", "--segment-bytes", "64KiB")
    assert (first.status, first.out) == (0, "created database metrics in /data\n")
    assert settings_of(siltstone) == DatabaseSettings(segment_bytes=64 * 1024)
    second = siltstone("db", "create", "metrics")
    assert (second.status, second.out, second.err) == (
        2,
        "",
        "siltstone: database 'metrics' exists already\n",
    )


def test_a_database_that_cannot_be_opened_is_not_left_behind(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise DiskError(DATA, "map", "Too many open files", errno=24)

    with monkeypatch.context() as patch:
        patch.setattr("siltstone.store.directory.Database", fail)
        outcome = siltstone("db", "create", "metrics", "--segment-bytes", "64KiB")
    assert (outcome.status, outcome.out, outcome.err) == (
        3,
        "",
        "siltstone: map failed: Too many open files: path=/data errno=24\n",
    )
    assert siltstone("db", "list", "--json").document == []


def test_a_database_that_cannot_be_taken_back_is_told_of(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise DiskError(DATA, "open", "Too many open files", errno=24)

    with monkeypatch.context() as patch:
        patch.setattr("siltstone.store.directory.Database", fail)
        patch.setattr("siltstone.store.directory.Store.drop", fail)
        outcome = siltstone("db", "create", "metrics", "--segment-bytes", "64KiB")
    assert (outcome.status, outcome.out, outcome.err) == (
        3,
        "",
        (
            "siltstone: open failed: Too many open files: path=/data errno=24; database 'metrics' "
            "may exist in part; remove it with 'siltstone db drop'\n"
        ),
    )
    assert len(siltstone("db", "list", "--json").document) == 1


def test_a_database_that_was_there_is_never_dropped_by_a_create_that_fails(
    metrics: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise DiskError(DATA, "exists", "I/O error", errno=5)

    with monkeypatch.context() as patch:
        patch.setattr("siltstone.store.directory.Store.create", fail)
        assert metrics("db", "create", "metrics").status == 3
    assert [each["rows"] for each in metrics("db", "list", "--json").document] == [2]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (
            ("--segment-bytes", "3q"),
            (
                "Invalid value for '--segment-bytes': expected a size such as 64MiB or 1.5GB, got "
                "'3q' (units: B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB); see "
                "'siltstone db create --help'"
            ),
        ),
        (
            ("--compression", "gzip"),
            "--compression must be one of none, zstd, lz4: --compression='gzip'",
        ),
        (
            ("--threshold", "99999999999"),
            (
                "--threshold must be one or more numbers from -1 to 2147483647: "
                "--threshold=(99999999999,)"
            ),
        ),
        (
            ("--reserve", "9999999TiB"),
            "--reserve must be at most 1152921504606846976: --reserve=10995115178248372224",
        ),
        (("--shards", "0"), "--shards must be a number from 1 to 16384: --shards=0"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    siltstone: CommandLine, args: tuple[str, ...], complaint: str
) -> None:
    outcome = siltstone("db", "create", "metrics", *args)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"siltstone: {complaint}\n")


def test_databases_are_listed_with_totals(metrics: CommandLine) -> None:
    metrics.create("empty", "--shards", "3")
    documents = metrics("db", "list", "--json").document
    sizes = [document.pop("size_bytes") for document in documents]
    assert documents == [
        {"database": "empty", "shards": 3, "slab_count": 3, "rows": 0},
        {"database": "metrics", "shards": 1, "slab_count": 1, "rows": 2},
    ]
    lines = [line.split() for line in metrics("db", "list").lines]
    assert lines[0] == ["database", "shards", "slabs", "rows", "size"]
    assert [line[:4] for line in lines[2:]] == [
        ["empty", "3", "3", "0"],
        ["metrics", "1", "1", "2"],
    ]
    assert [line[4:] for line in lines[2:]] == [[f"{size // 1024}", "KiB"] for size in sizes]


def test_a_directory_without_databases_says_how_to_make_one(metrics: CommandLine) -> None:
    metrics("db", "drop", "metrics", "--yes")
    assert metrics("db", "list", "--json").document == []
    assert metrics("db", "list").out == (
        "no databases in /data; create one with 'siltstone db create NAME'\n"
    )


def test_a_database_is_shown_with_settings_slabs_and_totals(metrics: CommandLine) -> None:
    document = metrics("db", "info", "metrics", "--json").document
    (slab,) = document.pop("slabs")
    assert (slab["slab"], slab["rows"]) == ("0/1", 2)
    assert document == {
        "database": "metrics",
        "shards": 1,
        "slab_count": 1,
        "rows": 2,
        "size_bytes": slab["size_bytes"],
        "settings": DatabaseSettings(segment_bytes=64 * 1024).to_json(),
        "pending": {},
        "recovery": [],
    }
    lines = metrics("db", "info", "metrics").lines
    assert lines[:2] == ["database             metrics", "rows                 2"]
    assert "segment-bytes        64 KiB" in lines
    assert lines[-1].startswith("0/1   current")


def test_a_database_is_shown_while_another_process_writes_it(metrics: CommandLine) -> None:
    with metrics.store():
        assert metrics("db", "info", "metrics").status == 0
        assert metrics("db", "list").status == 0
        refused = metrics("db", "info", "metrics", "--recover")
    assert refused.status == 2
    assert refused.err.startswith("siltstone: data directory /data is in use by another process")


def test_recovery_is_shown_when_it_is_asked_for(metrics: CommandLine) -> None:
    document = metrics("db", "info", "metrics", "--recover", "--json").document
    assert document["recovery"] == [{"slab": "0/1", "torn_bytes": 0, "rebuilt": [], "foreign": []}]
    assert [
        line.split() for line in metrics("db", "info", "metrics", "--recover").lines[-3::2]
    ] == [
        ["recovered", "torn", "indexes", "rebuilt", "foreign", "files"],
        ["0/1", "0", "B", "none", "none"],
    ]


def test_a_database_is_dropped_with_yes(metrics: CommandLine) -> None:
    assert metrics("db", "drop", "metrics", "--yes").out == "dropped database metrics\n"
    again = metrics("db", "drop", "metrics", "--yes")
    assert (again.status, again.err) == (
        2,
        "siltstone: database 'metrics' does not exist in /data (databases: none)\n",
    )
    metrics.create("metrics")
    assert metrics("db", "drop", "metrics", "-y", "--json").document == {"dropped": "metrics"}


def test_a_database_is_not_dropped_where_nobody_can_be_asked(metrics: CommandLine) -> None:
    outcome = metrics("db", "drop", "metrics")
    assert (outcome.status, outcome.err) == (
        2,
        "siltstone: database 'metrics' has 2 rows; pass --yes to drop it without a question\n",
    )
    assert metrics("db", "info", "metrics").status == 0


@pytest.mark.parametrize(
    ("answer", "status", "left"),
    [(b"n\n", 1, 1), (b"\n", 1, 1), (b"y\n", 0, 0), (b"", 1, 1), (b"YES\n", 0, 0)],
)
def test_a_person_is_asked_before_a_database_is_dropped(
    metrics: CommandLine, answer: bytes, status: int, left: int
) -> None:
    outcome = metrics("db", "drop", "metrics", stdin=answer, terminal=True)
    assert outcome.status == status
    assert outcome.err == "Drop database 'metrics' with 2 rows? [y/N] "
    assert len(metrics("db", "list", "--json").document) == left


def test_settings_are_changed_by_name(metrics: CommandLine) -> None:
    outcome = metrics("db", "set", "metrics", "retain=7d", "quota=none", "threshold=7", "--json")
    changed = DatabaseSettings(segment_bytes=64 * 1024, retain_seconds=604_800.0, thresholds=(7,))
    # The slab keeps its thresholds.
    assert outcome.document == {
        "database": "metrics",
        "settings": changed.to_json(),
        "pending": {"thresholds": [[100, 10]]},
    }
    assert settings_of(metrics) == changed
    shown = metrics("db", "set", "metrics", "retain=none")
    assert "retain               none" in shown.lines
    for lines in (shown.lines, metrics("db", "info", "metrics").lines):
        assert "threshold            100,10 (next generation: 7)" in lines
    assert metrics("db", "info", "metrics", "--json").document["pending"] == {
        "thresholds": [[100, 10]]
    }
    metrics("seal", "metrics")
    assert "threshold            7" in metrics("db", "info", "metrics").lines


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            "shards=3",
            (
                "shards is fixed when a database is created; "
                "create another database with 'siltstone db create'"
            ),
        ),
        (
            "quota=-1",
            (
                "quota: expected a size such as 64MiB or 1.5GB, got '-1' "
                "(units: B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB)"
            ),
        ),
        ("quota=0", "quota must be a size above 0, or none: quota=0"),
    ],
)
def test_settings_that_cannot_change_are_refused(
    metrics: CommandLine, change: str, complaint: str
) -> None:
    before = settings_of(metrics)
    outcome = metrics("db", "set", "metrics", change)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"siltstone: {complaint}\n")
    assert settings_of(metrics) == before


def test_a_dropped_copy_of_a_replicated_database_comes_back(metrics: CommandLine) -> None:
    assert metrics("cluster", "import-local", "metrics").status == 0
    outcome = metrics("db", "drop", "metrics", "--yes")
    assert (outcome.status, outcome.out, outcome.err) == (
        0,
        "dropped database metrics\n",
        (
            "siltstone: only the copy of this site is deleted: while the cluster has metrics, this "
            "site copies it again after its start\n"
        ),
    )
