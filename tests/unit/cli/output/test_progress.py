from __future__ import annotations

import io
from pathlib import PurePath

import pytest

from siltstone.cli.output.progress import BYTES, counting, progress, tree_size, waiting, watched
from siltstone.fs.memory import MemoryFileSystem


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of stderr; in the test itself, for pytest sets it before."""
    made = Terminal()
    monkeypatch.setattr("sys.stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return made


def test_progress_is_for_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("Waiting"), counting("Counting") as tell, progress("Reading") as meter:
        tell(5, 3)
        meter.tell(7)
    assert capsys.readouterr() == ("", "")


def test_a_bar_has_count_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress("Verifying", BYTES, 4096) as meter:
        meter.add(1024)
        meter.add(1024)
    shown = terminal.getvalue()
    assert "Verifying" in shown
    assert "2 KiB" in shown
    assert "B/s" in shown
    assert "left" in shown


def test_without_an_end_no_time_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress("Reading") as meter:
        meter.tell(1200)
    assert "1,200 rows" in terminal.getvalue()
    assert "left" not in terminal.getvalue()


@pytest.mark.parametrize("by_rows", [True, False])
def test_a_job_counts_rows_and_measures_rows_or_steps(
    monkeypatch: pytest.MonkeyPatch, *, by_rows: bool
) -> None:
    terminal = on_terminal(monkeypatch)
    with counting("Tiering", by_rows=by_rows) as tell:
        tell(5, 3)
        tell(7, 0)
    assert "12 rows" in terminal.getvalue()


def test_something_of_unknown_length_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with waiting("Starting Spark"):
        pass
    assert "Starting Spark" in terminal.getvalue()


def test_a_watched_file_tells_what_is_read_and_is_the_file_otherwise() -> None:
    fs = MemoryFileSystem()
    told: list[int] = []
    with fs.create(PurePath("/f")) as file:
        file.write(b"abcdef")
        seen = watched(file, told.append)
        assert seen.read_at(2, 100) == b"cdef"
        assert (seen.size(), seen.path) == (6, PurePath("/f"))
    assert told == [4]


def test_a_tree_has_the_size_of_its_files() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(PurePath("/d"))
    fs.make_directory(PurePath("/d/e"))
    for path in ("/d/f", "/d/e/g"):
        with fs.create(PurePath(path)) as file:
            file.write(b"x" * 100)
    assert tree_size(fs, PurePath("/d")) == 200
    assert tree_size(fs, PurePath("/nosuch")) == 0
