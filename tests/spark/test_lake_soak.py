"""An hour of a broker with a continuous tier job, and twenty kills: each row is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lake_soak import soak


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_an_hour_with_twenty_kills_leaves_each_acknowledged_row_in_the_lake_once(
    tmp_path: Path,
) -> None:
    found = soak(tmp_path / "store", seconds=3600, rate=5000, kills=20)
    assert (found["missing"], found["twice"], found["wrong"]) == (0, 0, 0)
    assert found["by_duckdb"] == {"rows": found["rows"], "differs": 0}
    assert found["rows"] >= found["acknowledged"] > 0
    assert set(found["tables"]) == {"plant_device_telemetry"}
    assert sum(found["kills"].values()) == 20
    assert not found["mistakes"]
    assert max(each["files"] for each in found["samples"]) < 200
