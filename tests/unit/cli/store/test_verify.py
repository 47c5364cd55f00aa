from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import pytest

from siltstone.errors import LockedError
from siltstone.fs.api import FileSystem
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.check.verify import VerifyReport
from siltstone.store.log.read.pieces import Row
from tests.support.command_line import DATA, CommandLine

BAD_SEGMENT = DATA / "data/metrics/0/1/00000000000000000000.seg"
DAMAGE = Finding(path=BAD_SEGMENT, offset=4160, problem="frame is damaged")
NOTE = Finding(path=DATA / "data/metrics/x", offset=0, problem="stranger", severity="note")


class Verifier:
    """Stands for the check itself: finds what it was told to find, and notes how it was asked."""

    def __init__(self, siltstone: CommandLine) -> None:
        self._siltstone = siltstone
        self.findings: dict[str, Finding] = {}
        self.asked: list[tuple[str, bool, bool]] = []

    def __call__(
        self,
        fs: FileSystem,
        directory: PurePath,
        *,
        repair: bool,
        quarantine: PurePath,
        progress: Callable[[int], None],
    ) -> VerifyReport:
        progress(1)
        assert fs is self._siltstone.fs
        assert quarantine == DATA / "quarantine"
        self.asked.append((str(directory), repair, self._locked()))
        found = self.findings.get(directory.name)
        return VerifyReport(
            findings=() if found is None else (found,), segments=1, frames=3, rows=1000, bytes=4096
        )

    def _locked(self) -> bool:
        try:
            self._siltstone.store().close()
        except LockedError:
            return True
        return False


@pytest.fixture
def verifier(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Verifier:
    siltstone.create("metrics")
    siltstone.create("other")
    made = Verifier(siltstone)
    monkeypatch.setattr("siltstone.cli.store.verify.verify_database", made)
    return made


def test_a_whole_database_is_told_with_status_0(siltstone: CommandLine, verifier: Verifier) -> None:
    outcome = siltstone("verify", "metrics")
    assert (outcome.status, outcome.out, outcome.err) == (
        0,
        "metrics: whole; 1,000 rows in 1 segment with 4 KiB\n",
        "",
    )
    assert verifier.asked == [("/data/data/metrics", False, False)]


def test_all_databases_are_checked_and_one_damaged_one_makes_the_status_1(
    siltstone: CommandLine, verifier: Verifier
) -> None:
    verifier.findings = {"metrics": DAMAGE}
    outcome = siltstone("verify", "--all")
    assert (outcome.status, outcome.err) == (1, "")
    header, _, finding, *rest = outcome.lines
    assert header.split() == ["database", "file", "offset", "severity", "problem", "done"]
    assert finding.split() == [
        "metrics",
        str(BAD_SEGMENT),
        "4,160",
        "damage",
        *DAMAGE.problem.split(),
    ]
    assert rest == [
        "metrics: damaged; 1,000 rows in 1 segment with 4 KiB",
        "other: whole; 1,000 rows in 1 segment with 4 KiB",
        "stop the broker, then repair with --repair",
    ]
    assert verifier.asked == [
        ("/data/data/metrics", False, False),
        ("/data/data/other", False, False),
    ]


def test_what_is_worth_a_note_only_is_shown_and_no_failure(
    siltstone: CommandLine, verifier: Verifier
) -> None:
    verifier.findings = {"metrics": NOTE}
    outcome = siltstone("verify", "metrics")
    assert (outcome.status, outcome.lines[2].split()[3:]) == (0, ["note", "stranger"])
    assert outcome.lines[3:] == ["metrics: whole; 1,000 rows in 1 segment with 4 KiB"]


def test_repair_holds_the_lock_and_tells_what_was_done(
    siltstone: CommandLine, verifier: Verifier
) -> None:
    verifier.findings = {
        "metrics": Finding(path=BAD_SEGMENT, offset=64, problem="damaged", repaired="cut out")
    }
    outcome = siltstone("verify", "metrics", "--repair", "--json")
    assert outcome.status == 1
    assert outcome.document == [
        {
            "database": "metrics",
            "damaged": True,
            "segments": 1,
            "frames": 3,
            "rows": 1000,
            "size_bytes": 4096,
            "findings": [
                {
                    "path": str(BAD_SEGMENT),
                    "offset": 64,
                    "severity": "damage",
                    "problem": "damaged",
                    "repaired": "cut out",
                }
            ],
        }
    ]
    assert verifier.asked == [("/data/data/metrics", True, True)]
    assert "--repair" not in siltstone("verify", "metrics", "--repair").out


def test_a_database_that_lost_its_manifest_can_still_be_asked_about(
    siltstone: CommandLine, verifier: Verifier
) -> None:
    siltstone.fs.remove(DATA / "data/metrics/manifest")
    assert siltstone("verify", "metrics").status == 0
    assert siltstone("verify", "--all").status == 0
    assert [directory for directory, _, _ in verifier.asked] == [
        "/data/data/metrics",
        "/data/data/other",
    ]


def test_a_database_with_rows_that_lost_its_manifest_is_checked_with_all_others(
    siltstone: CommandLine, verifier: Verifier
) -> None:
    with siltstone.store() as store:
        store.database("metrics").append([Row(topic="t", value=b"v")])
    siltstone.fs.remove(DATA / "data/metrics/manifest")
    assert siltstone("verify", "--all").status == 0
    assert [directory for directory, _, _ in verifier.asked] == [
        "/data/data/metrics",
        "/data/data/other",
    ]
    listed = siltstone("db", "list")
    assert listed.err == (
        "siltstone: warning: database metrics has lost its manifest, "
        "run 'siltstone verify metrics --repair'\n"
    )


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "name one database, or pass --all"),
        (("metrics", "--all"), "name one database, or pass --all"),
        (("nope",), "database 'nope' does not exist in /data (databases: metrics, other)"),
        (("../data",), "database '../data' does not exist in /data (databases: metrics, other)"),
    ],
)
def test_what_to_check_must_be_clear(
    siltstone: CommandLine, verifier: Verifier, args: tuple[str, ...], complaint: str
) -> None:
    outcome = siltstone("verify", *args)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"siltstone: {complaint}\n")
    assert verifier.asked == []


def test_what_another_process_writes_is_checked_but_not_repaired(
    siltstone: CommandLine, verifier: Verifier
) -> None:
    with siltstone.store():
        assert siltstone("verify", "metrics").status == 0
        refused = siltstone("verify", "--all", "--repair")
    assert (refused.status, verifier.asked) == (2, [("/data/data/metrics", False, True)])
    assert refused.err.startswith("siltstone: data directory /data is in use by another process")
