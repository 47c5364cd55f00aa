from __future__ import annotations

from pathlib import PurePath

from siltstone.fs.paths import StorePaths


def test_everything_is_below_the_root_at_its_place() -> None:
    paths = StorePaths(PurePath("/d"))
    found = {
        name: str(getattr(paths, name))
        for name in (
            "lock",
            "version",
            "clock",
            "data",
            "keyvalues",
            "commits",
            "snapshots",
            "quarantine",
            "staging",
            "control_socket",
            "flight_socket",
        )
    }
    # The formats page promises these names: an old directory must open.
    assert found == {
        "lock": "/d/LOCK",
        "version": "/d/VERSION",
        "clock": "/d/CLOCK",
        "data": "/d/data",
        "keyvalues": "/d/kv",
        "commits": "/d/commits",
        "snapshots": "/d/snapshots",
        "quarantine": "/d/quarantine",
        "staging": "/d/staging",
        "control_socket": "/d/control.sock",
        "flight_socket": "/d/flight.sock",
    }
    assert [
        str(paths.database("a")),
        str(paths.keyvalue("a")),
        str(paths.keyvalue("commits")),
        str(paths.spool("a")),
        str(paths.lake("a")),
    ] == ["/d/data/a", "/d/kv/a", "/d/commits", "/d/spool/a", "/d/lake/a"]
