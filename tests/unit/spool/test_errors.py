from __future__ import annotations

from pathlib import PurePath

from siltstone.errors import DiskError, NotFoundError
from siltstone.spool.errors import CleanupFailedError, NoSuchEntryError, UnableToCommitError
from siltstone.spool.names import Entry


def test_unable_to_commit_tells_where_the_data_are() -> None:
    error = UnableToCommitError(
        "no", paths=(PurePath("/a"), PurePath("/b")), spans=((0, 1), (0, 2))
    )
    assert error.path == PurePath("/a")
    assert str(error) == "not stored, the data is kept: no: paths=['/a', '/b']"
    error = UnableToCommitError("no", paths=(PurePath("/a"),) * 2, spans=((0, 1), (1, 2)))
    assert str(error).endswith("no: paths=['/a', '/a'] spans=[(0, 1), (1, 2)]")


def test_no_such_entry_is_something_not_found() -> None:
    error = NoSuchEntryError(Entry(3, "x"), PurePath("/q/3-x"))
    assert isinstance(error, NotFoundError)
    assert (error.entry, error.source) == (Entry(3, "x"), PurePath("/q/3-x"))
    assert str(error) == "the entry does not exist: id=3 path=/q/3-x"


def test_a_failed_cleanup_tells_what_is_left() -> None:
    error = CleanupFailedError(PurePath("/a"), DiskError(PurePath("/a"), "remove", "no", errno=5))
    assert error.path == PurePath("/a")
    assert str(error).endswith("remove failed: no: path=/a errno=5: path=/a")
