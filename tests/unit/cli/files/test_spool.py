from __future__ import annotations

from pathlib import PurePath

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def spool(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setattr("siltstone.spool.spool.PosixFileSystem", lambda: siltstone.fs)
    assert siltstone("spool", "create", "/q").out == "created spool /q\n"
    return siltstone


def put(spool: CommandLine, data: bytes, metadata: str) -> int:
    [stored] = spool("spool", "put", "/q", "-m", metadata, "--json", stdin=data).document
    assert stored["metadata"] == metadata
    return int(stored["id"])


def test_what_is_put_is_listed_and_shown(spool: CommandLine) -> None:
    assert spool("spool", "put", "/q", stdin=b"one\n").out == "0\n"
    second = put(spool, b"two\n", "sensor/7")
    assert spool("spool", "list", "/q", "--json").document == [
        {"id": 0, "metadata": None},
        {"id": second, "metadata": "sensor/7"},
    ]
    assert [line.split() for line in spool("spool", "list", "/q").lines if "─" not in line] == [
        ["id", "metadata"],
        ["0"],
        [str(second), "sensor/7"],
    ]
    assert spool("spool", "cat", "/q", f"{second}").out == "two\n"


def test_a_discarded_entry_is_gone_and_another_is_no_entry(spool: CommandLine) -> None:
    first, second = put(spool, b"1", "a"), put(spool, b"2", "b")
    assert spool("spool", "discard", "/q", f"{first}", f"{second}", "--json").document == {
        "discarded": [{"id": first, "metadata": "a"}, {"id": second, "metadata": "b"}]
    }
    for command in ("discard", "cat"):
        refused = spool("spool", command, "/q", f"{first}")
        assert (refused.status, refused.err) == (
            2,
            f"siltstone: /q has no entry {first}; 'siltstone spool list' shows the entries\n",
        )
    assert spool("spool", "list", "/q", "--json").document == []


def test_an_entry_is_moved_out_with_its_reason(spool: CommandLine) -> None:
    number = put(spool, b"data", "m")
    done = spool("spool", "discard", "/q", f"{number}", "--to", "/out", "--reason", "poison")
    assert (done.status, done.out) == (0, f"discarded {number}\n")
    assert spool.fs.read(PurePath("/out")) == b"data"
    assert spool.fs.read(PurePath("/out.reason.txt")) == b"poison\n"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("0", "1", "--to", "/out"), "--to takes one entry, got 2"),
        (("0", "--reason", "x"), "--reason needs --to; pass both"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    spool: CommandLine, args: tuple[str, ...], complaint: str
) -> None:
    refused = spool("spool", "discard", "/q", *args)
    assert (refused.status, refused.err) == (2, f"siltstone: {complaint}\n")


def test_stats_count_what_is_there(spool: CommandLine) -> None:
    put(spool, bytes(84), "m")
    spool.fs.create(PurePath("/q/q/photo.jpg")).close()
    assert spool("spool", "stats", "/q", "--json").document == {
        "entries": 1,
        "size_bytes": 100,
        "unexpected": 1,
        "kept": 0,
        "next_likely_id": 1,
    }
    assert spool("spool", "stats", "/q").lines[0].split() == ["entries", "1"]


def test_a_directory_that_is_no_spool_is_refused(spool: CommandLine) -> None:
    refused = spool("spool", "list", "/other")
    assert (refused.status, refused.err) == (
        2,
        "siltstone: the spool does not exist, create it first: path=/other\n",
    )
    assert spool("spool", "create", "/q", "--json").status == 2
    assert spool("spool", "create", "/new", "--json").document == {"path": "/new"}
