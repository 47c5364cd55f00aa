from __future__ import annotations

import io

import pytest

from siltstone.cli.output.output import console_on, print_on
from siltstone.cli.store.structure import Level, Pattern, draw, levels, merge
from siltstone.store.log.info import StreamInfo
from siltstone.store.slab.manifest import SlabId
from tests.support.command_line import CommandLine


def stream(generation: int, pattern: str, rows: int) -> StreamInfo:
    return StreamInfo(slab=SlabId(0, generation), stream_id=1, pattern=pattern, rows=rows)


def drawn(*patterns: Pattern) -> list[str]:
    file = io.StringIO()
    print_on(console_on(file), draw("db", levels(patterns)))
    return file.getvalue().splitlines()


def test_the_same_structure_of_several_slabs_is_one() -> None:
    assert merge([stream(1, "b/+", 1), stream(1, "a", 2), stream(2, "b/+", 4)]) == [
        Pattern("a", 2, 1),
        Pattern("b/+", 5, 2),
    ]


def test_patterns_are_arranged_by_level() -> None:
    assert levels([Pattern("a", 1, 1), Pattern("a/b", 2, 1)]) == Level(
        below=3, children={"a": Level(own=1, below=2, children={"b": Level(own=2)})}
    )


def test_the_tree_has_counts_at_its_ends_and_varying_levels_last() -> None:
    assert drawn(
        Pattern("site/+/temp", 1000, 1),
        Pattern("site/b/temp", 2, 1),
        Pattern("site/a/temp", 1, 1),
        Pattern("site/a/hum", 3, 1),
        Pattern("site", 7, 1),
        Pattern("alone/in/the/dark", 1, 1),
    ) == [
        "db  1,014 rows",
        "├── alone/in/the/dark  1 row",
        "└── site  7 rows  1,006 below",
        "    ├── a  4 below",
        "    │   ├── hum  3 rows",
        "    │   └── temp  1 row",
        "    ├── b/temp  2 rows",
        "    └── +/temp  1,000 rows",
    ]


def test_words_that_are_empty_or_odd_can_be_told_apart() -> None:
    assert drawn(Pattern("/a", 1, 1), Pattern("[b]\x1b", 2, 1), Pattern("/", 3, 1)) == [
        "db  6 rows",
        '├── ""  4 below',
        '│   ├── ""  3 rows',
        "│   └── a  1 row",
        "└── [b]\\x1b  2 rows",
    ]


def test_nothing_learned_is_a_root_alone() -> None:
    assert drawn() == ["db  0 rows"]


@pytest.fixture
def metrics(siltstone: CommandLine) -> CommandLine:
    """Two rooms in the first generation, which learns that rooms vary; three in the second."""
    siltstone.create("metrics", "--threshold", "2,1")
    for rooms in (2, 3):
        lines = b"".join(
            b'{"topic":"room/%d/t","value":0}\n{"topic":"$SYS/up","value":1}\n' % room
            for room in range(rooms)
        )
        siltstone("append", "metrics", stdin=lines)
        siltstone("seal", "metrics")
    return siltstone


def test_the_learned_structure_is_shown_over_all_generations(metrics: CommandLine) -> None:
    assert metrics("structure", "metrics", "--json").document == [
        {"pattern": "$SYS/up", "rows": 5, "slabs": 2},
        {"pattern": "room/+/t", "rows": 4, "slabs": 2},
        {"pattern": "room/0/t", "rows": 1, "slabs": 1},
    ]
    assert metrics("structure", "metrics").lines == [
        "metrics  10 rows",
        "├── $SYS/up  5 rows",
        "└── room  5 below",
        "    ├── 0/t  1 row",
        "    └── +/t  4 rows",
    ]


def test_the_learned_structure_is_shown_for_one_generation(metrics: CommandLine) -> None:
    assert metrics("structure", "metrics", "--generation", "2", "--json").document == [
        {"pattern": "$SYS/up", "rows": 3, "slabs": 1},
        {"pattern": "room/+/t", "rows": 3, "slabs": 1},
    ]
    assert metrics("structure", "metrics", "--generation", "3", "--json").document == []


def test_a_generation_that_is_not_there_is_refused(metrics: CommandLine) -> None:
    outcome = metrics("structure", "metrics", "--generation", "9")
    assert (outcome.status, outcome.err) == (
        2,
        "siltstone: database 'metrics' has no generation 9 (generations: 1, 2, 3)\n",
    )
