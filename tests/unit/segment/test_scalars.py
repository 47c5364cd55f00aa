from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.segment.scalars import scalar

READS = """
import sys
import siltstone

with siltstone.open(sys.argv[1]) as store:
    database = store.create("db")
    database.append([siltstone.Row("a/b", b"1"), siltstone.Row("a/c", b"2", "p", 1, True)]).wait()
    for wanted in ("#", "a/b"):
        for stream in database.streams(wanted):
            batch = database.next(database.iterator(stream, wanted), 10).batch
            assert batch.rows()
            assert batch.arrow().num_rows == batch.table().num_rows == len(batch)
sys.exit("pandas" in sys.modules)
"""


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, pa.bool_()),
        (False, pa.bool_()),
        (-128, pa.int8()),
        (-32_768, pa.int16()),
        (2**31 - 1, pa.int32()),
        (-(2**63), pa.int64()),
        (255, pa.uint8()),
        (2**32 - 1, pa.uint32()),
        (2**64 - 1, pa.uint64()),
        ("", pa.string()),
        ("größer", pa.string()),
        (b"", pa.binary()),
        (b"\x00\xff", pa.binary()),
    ],
)
def test_a_value_is_what_arrow_makes_of_it(value: int | str | bytes, kind: pa.DataType) -> None:
    made = scalar(value, kind)
    assert made.type == kind
    assert made.equals(pa.scalar(value, kind))
    assert made.as_py() == value


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not there to be loaded")
def test_reads_do_not_load_pandas(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", READS, tmp_path], check=True)
