"""A segment that somebody cut short, on a real disk."""

from __future__ import annotations

from pathlib import Path, PurePath

import siltstone
from siltstone import DatabaseSettings, Row
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.log.check.verify import verify_database


def test_what_a_cut_takes_is_told_and_its_serials_are_not_used_again(tmp_path: Path) -> None:
    with siltstone.open(tmp_path) as store:
        database = store.create("one", DatabaseSettings(segment_bytes=1024 * 1024))
        for number in range(10):
            database.append([Row("t", b"%d " % number + bytes(40_000))]).wait()
    (segment,) = (tmp_path / "data/one/0/1").glob("*.seg")
    with segment.open("r+b") as file:
        file.truncate(200_000)
    report = verify_database(
        PosixFileSystem(),
        PurePath(tmp_path / "data/one"),
        repair=True,
        quarantine=PurePath(tmp_path / "quarantine"),
    )
    told = [finding.problem for finding in report.findings if finding.severity == "damage"]
    assert "rows may be lost after its end" in told[0]
    assert "rows are lost: serials" in told[1]
    with siltstone.open(tmp_path) as store:
        database = store.database("one")
        read = database.next(database.iterator(database.streams()[0]))
        left = [row.value.split()[0] for row in read.batch.rows()]
        assert left == [b"%d" % number for number in range(len(left))]
        assert 3 <= len(left) < 10
        assert database.append([Row("t", b"next")]).serials()[0] >= 10
