from __future__ import annotations

from siltstone.flight.origin import RemotePortion
from siltstone.pipeline.source.partitions import SourcePartition
from siltstone.scan.portion import Portion
from tests.support.pipeline import sent


def test_a_partition_travels_as_a_value_wherever_its_rows_are() -> None:
    for portion in (Portion("/data", (), ()), RemotePortion(b"ticket"), None):
        assert sent(SourcePartition(portion)) == SourcePartition(portion)
