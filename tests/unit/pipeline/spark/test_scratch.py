from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePath

from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.spark.scratch import Scratch, sweep_scratch

HELD = """
import sys
from pathlib import PurePath
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.spark.scratch import Scratch

scratch = Scratch(PosixFileSystem(), PurePath(sys.argv[1]))
print(scratch.path, flush=True)
sys.stdin.read()
"""


def names(place: Path) -> list[str]:
    return sorted(os.listdir(place))


def test_a_directory_goes_when_it_is_removed(tmp_path: Path) -> None:
    scratch = Scratch(PosixFileSystem(), PurePath(tmp_path))
    (Path(scratch.path) / "file").touch()
    assert names(tmp_path) == [scratch.path.name]
    scratch.remove()
    assert names(tmp_path) == []
    scratch.remove()


def test_what_a_killed_process_has_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    fs, place = PosixFileSystem(), PurePath(tmp_path)
    kept = Scratch(fs, place)
    (tmp_path / "siltstone-0123456789abcdef").mkdir()
    (tmp_path / "siltstone-notes").write_text("mine")
    expected = names(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    left = PurePath(child.stdout.readline().strip())
    sweep_scratch(fs, place)
    assert names(tmp_path) == sorted([*expected, left.name])
    child.kill()
    child.communicate()
    sweep_scratch(fs, place)
    assert names(tmp_path) == expected
    kept.remove()
