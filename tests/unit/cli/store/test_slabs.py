from __future__ import annotations

import pytest

from siltstone.cli.store.slabs import parse_slab, slab_document
from siltstone.errors import UsageError
from siltstone.store.log.info import SlabInfo
from siltstone.store.segment.segment import segment_path
from siltstone.store.slab.manifest import SlabId
from tests.support.command_line import DATA, START_US, CommandLine
from tests.support.damage import flip, frames_of

SEALED = SlabInfo(
    slab=SlabId(1, 7),
    state="sealed",
    since_us=START_US,
    until_us=START_US + 1,
    created_us=START_US - 1,
    rows=5,
    size_bytes=4096,
    segments=2,
    streams=3,
)


@pytest.fixture
def metrics(siltstone: CommandLine) -> CommandLine:
    siltstone.create("metrics")
    siltstone("append", "metrics", stdin=b'{"topic":"a","value":1}\n{"topic":"b","value":2}')
    return siltstone


def shown(siltstone: CommandLine) -> list[tuple[str, str, int, int]]:
    return [
        (slab["slab"], slab["state"], slab["rows"], slab["streams"])
        for slab in siltstone("slabs", "metrics", "--json").document
    ]


def test_a_slab_is_a_json_object_with_times_as_text() -> None:
    assert slab_document(SEALED) == {
        "slab": "1/7",
        "shard": 1,
        "generation": 7,
        "state": "sealed",
        "since": "2023-11-14T22:13:20.000000Z",
        "until": "2023-11-14T22:13:20.000001Z",
        "created": "2023-11-14T22:13:19.999999Z",
        "rows": 5,
        "size_bytes": 4096,
        "segments": 2,
        "compacted": 0,
        "streams": 3,
        "lost_rows": 0,
    }


def test_slabs_are_listed_while_another_process_writes(metrics: CommandLine) -> None:
    with metrics.store():
        listed = metrics("slabs", "metrics")
    size_bytes = metrics("slabs", "metrics", "--json").document[0]["size_bytes"]
    assert size_bytes % 1024 == 0
    assert (listed.status, [line.split() for line in listed.lines if "─" not in line]) == (
        0,
        [
            ["slab", "state", "since", "until", "rows", "size", "segments", "compacted", "streams"],
            [
                "0/1",
                "current",
                "2023-11-14",
                "22:13:20Z",
                "2",
                str(size_bytes // 1024),
                "KiB",
                "1",
                "0",
                "2",
            ],
        ],
    )


def test_sealing_begins_a_new_generation(metrics: CommandLine) -> None:
    metrics.clock.advance(1)
    outcome = metrics("seal", "metrics")
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[:2] for line in outcome.lines[2:]] == [
        ["0/1", "sealed"],
        ["0/2", "current"],
    ]
    assert shown(metrics) == [("0/1", "sealed", 2, 2), ("0/2", "current", 0, 0)]
    documents = metrics("seal", "metrics", "--json").document
    assert [slab["slab"] for slab in documents] == ["0/1", "0/2", "0/3"]


def test_a_sealed_slab_is_dropped_with_its_rows(metrics: CommandLine) -> None:
    metrics("seal", "metrics")
    assert (
        metrics("drop", "metrics", "0/1", "--yes").out == "dropped slab 0/1 of database metrics\n"
    )
    assert shown(metrics) == [("0/2", "current", 0, 0)]
    metrics("seal", "metrics")
    outcome = metrics("drop", "metrics", "0/2", "--yes", "--json")
    assert outcome.document == {"database": "metrics", "dropped": "0/2"}


@pytest.mark.parametrize(
    ("slab", "complaint"),
    [
        ("0/1", "slab 0/1 is current: seal it, then drop it"),
        ("0/9", "unknown slab 0/9; 'siltstone slabs' lists those of a database"),
        ("1", "expected a slab as SHARD/GENERATION, got '1'; 'siltstone slabs' lists them"),
    ],
)
def test_what_cannot_be_dropped_is_refused(metrics: CommandLine, slab: str, complaint: str) -> None:
    outcome = metrics("drop", "metrics", slab)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"siltstone: {complaint}\n")
    assert shown(metrics) == [("0/1", "current", 2, 2)]


@pytest.mark.parametrize("args", [("seal", "metrics"), ("drop", "metrics", "0/1")])
def test_a_directory_that_another_process_writes_is_left_alone(
    metrics: CommandLine, args: tuple[str, ...]
) -> None:
    with metrics.store():
        outcome = metrics(*args)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("siltstone: data directory /data is in use by another process")


@pytest.mark.parametrize(
    ("answer", "status", "slabs"),
    [
        (b"y\n", 0, ["0/2"]),
        (b"yes\n", 0, ["0/2"]),
        (b"n\n", 1, ["0/1", "0/2"]),
        (b"", 1, ["0/1", "0/2"]),
    ],
)
def test_a_person_is_asked_before_a_slab_is_dropped(
    metrics: CommandLine, answer: bytes, status: int, slabs: list[str]
) -> None:
    metrics("seal", "metrics")
    outcome = metrics("drop", "metrics", "0/1", stdin=answer, terminal=True)
    assert (outcome.status, outcome.err) == (
        status,
        "Drop slab 0/1 of database 'metrics' with 2 rows? [y/N] ",
    )
    assert [slab for slab, *_ in shown(metrics)] == slabs


def test_a_slab_is_not_dropped_where_nobody_can_be_asked(metrics: CommandLine) -> None:
    metrics("seal", "metrics")
    outcome = metrics("drop", "metrics", "0/1", stdin=b"y\n")
    assert (outcome.status, outcome.out, outcome.err) == (
        2,
        "",
        (
            "siltstone: slab 0/1 of database 'metrics' has 2 rows; "
            "pass --yes to drop it without a question\n"
        ),
    )
    assert [slab for slab, *_ in shown(metrics)] == ["0/1", "0/2"]


def test_with_yes_nobody_is_asked_before_a_slab_is_dropped(metrics: CommandLine) -> None:
    metrics("seal", "metrics")
    outcome = metrics("drop", "metrics", "0/1", "--yes", terminal=True)
    assert (outcome.status, outcome.err) == (0, "")


def lose_rows(metrics: CommandLine) -> None:
    """Damage the rows of the database, and repair what can be."""
    metrics("seal", "metrics")
    path = segment_path(DATA / "data" / "metrics" / "0" / "1", 0)
    flip(metrics.fs, path, frames_of(metrics.fs, path)[1].start + 100)
    assert metrics("verify", "metrics", "--repair").status == 1


def test_rows_that_repair_could_not_save_are_told_beside_the_answer(metrics: CommandLine) -> None:
    lose_rows(metrics)
    listed = metrics("slabs", "metrics", "--json")
    assert [slab["lost_rows"] for slab in listed.document] == [2, 0]
    assert listed.err == (
        "siltstone: slab 0/1 has lost 2 rows to damage; run 'siltstone verify' for details\n"
    )


def test_a_read_that_passes_over_a_hole_says_so(metrics: CommandLine) -> None:
    lose_rows(metrics)
    metrics("append", "metrics", stdin=b'{"topic":"c","value":3}')
    read = metrics("read", "metrics", "--json", "--columns", "topic")
    assert (read.status, read.out, read.err) == (
        0,
        '{"topic": "c"}\n',
        (
            "siltstone: rows were lost to damage: 2 rows, from serial 0 of slab 0/1; "
            "run 'siltstone verify'\n"
        ),
    )


def test_a_slab_is_written_as_it_is_shown() -> None:
    assert parse_slab("3/17") == SlabId(3, 17)
    assert parse_slab(str(SlabId(0, 1))) == SlabId(0, 1)


@pytest.mark.parametrize("text", ["", "1", "1/", "/1", "1/2/3", "-1/2", "a/b", "1.5/2", "²/1"])
def test_what_is_no_slab_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_slab(text)
    assert str(caught.value) == (
        f"expected a slab as SHARD/GENERATION, got {text!r}; 'siltstone slabs' lists them"
    )
