"""`make demo` as people see it, with fewer messages: on 80 columns, to the picture."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READINGS = 1_000
PNG = b"\x89PNG\r\n\x1a\n"


# It starts a Spark of its own, so it runs where no other Spark runs. On a machine that is busy with
# other things Spark takes minutes.
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_the_demonstration_tells_its_story_to_the_picture(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.demo", "--readings", str(READINGS)]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    # The last line is the path of the picture, which is whole, however long it is.
    assert [line for line in lines[:-1] if len(line) > 80] == []
    assert [line[:2] for line in lines if re.match(r"\d\. ", line)] == [
        f"{n}." for n in range(1, 7)
    ]
    for claim in (
        "0 of 60,000 acknowledged messages are lost.",
        "Audit: every row of the log is in the lake, exactly once.",
    ):
        assert claim in done.stdout
    # Readings that were sent again after the kill are in the log twice, and so in the backlog.
    received = re.search(r"It received all ([\d,]+) messages that it had missed", done.stdout)
    assert received is not None
    assert int(received[1].replace(",", "")) >= 12_000
    assert lines[-1].strip() == str(tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(PNG)
    assert not (tmp_path / "demo").exists()
