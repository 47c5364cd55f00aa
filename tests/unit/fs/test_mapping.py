from __future__ import annotations

import gc
import os
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.fs.mapping import map_shared


def opened(path: Path, size: int = 8192) -> int:
    path.write_bytes(bytes(size))
    return os.open(path, os.O_RDWR)


def maps_of(path: Path) -> int:
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_store_is_in_the_file_and_in_every_other_map(tmp_path: Path) -> None:
    descriptor = opened(tmp_path / "f")
    view = map_shared(descriptor, 8192, writable=True)
    other = map_shared(descriptor, 8192, writable=False)
    os.close(descriptor)
    view[4096:4099] = b"abc"
    assert (bytes(other[4096:4099]), (tmp_path / "f").read_bytes()[4096:4099]) == (b"abc", b"abc")
    assert (view.format, view.readonly, other.readonly, len(other)) == ("B", False, True, 8192)
    with pytest.raises(TypeError):
        other[0] = 1


def test_a_map_holds_no_descriptor_and_ends_with_its_last_view(tmp_path: Path) -> None:
    descriptor = opened(tmp_path / "f")
    before = len(os.listdir("/proc/self/fd"))
    view = map_shared(descriptor, 8192, writable=True)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(descriptor)
    buffer = pa.py_buffer(view[100:200])
    cells = view[:4096].cast("Q")
    assert cells.obj is view.obj
    del view, cells
    gc.collect()
    assert (maps_of(tmp_path / "f"), buffer.to_pybytes()) == (1, bytes(100))
    del buffer
    gc.collect()
    assert maps_of(tmp_path / "f") == 0


def test_a_map_that_is_released_is_gone_at_once(tmp_path: Path) -> None:
    descriptor = opened(tmp_path / "f")
    view = map_shared(descriptor, 8192, writable=False)
    view.release()
    assert maps_of(tmp_path / "f") == 0
    os.close(descriptor)


def test_what_cannot_be_mapped_is_an_error_of_the_system(tmp_path: Path) -> None:
    opened_to_read = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="cannot map the file"):
        map_shared(opened_to_read, 4096, writable=False)
    os.close(opened_to_read)
