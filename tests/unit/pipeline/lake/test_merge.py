from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from siltstone.pipeline.lake.merge import FAN_IN, FILE_BYTES, TableFile, choose_merges

TODAY = {"date": "2026-01-02"}
YESTERDAY = {"date": "2026-01-01"}
KIB, MIB = 1 << 10, 1 << 20


def file(
    name: str, size: int = KIB, batch: int | None = 1, partition: dict[str, str] = TODAY
) -> TableFile:
    return TableFile(path=name, batch=batch, size_bytes=size, rows=1, partition=partition)


def chosen(files: Sequence[TableFile], ended: int = 9, target: int = FILE_BYTES) -> list[set[str]]:
    merges = choose_merges(
        files, ended=ended, is_over=lambda part: part == YESTERDAY, target_bytes=target
    )
    return [{item.path for item in inputs} for inputs in merges]


def test_a_few_files_of_a_day_that_goes_on_are_left_alone() -> None:
    few = [file(f"{number}") for number in range(FAN_IN - 1)]
    assert chosen(few) == []
    assert chosen([*few, file("x")]) == [{*"012345678", "x"}]


def test_files_of_very_different_sizes_are_not_merged_while_rows_still_come() -> None:
    small = [file(f"s{number}") for number in range(FAN_IN - 1)]
    assert chosen([*small, file("large", 30 * MIB)]) == []


def test_a_day_that_is_over_is_merged_to_the_end_and_each_day_by_itself() -> None:
    files = [file("a", 30 * MIB, partition=YESTERDAY), file("b", partition=YESTERDAY), file("c")]
    assert chosen(files) == [{"a", "b"}]
    assert chosen([file("alone", partition=YESTERDAY)]) == []


def test_files_of_a_batch_that_has_not_ended_stay() -> None:
    files = [file(f"{number}", batch=number) for number in range(FAN_IN + 1)]
    assert chosen(files, ended=FAN_IN - 2) == []
    assert chosen(files, ended=FAN_IN - 1) == [set("0123456789")]
    assert chosen([file("m", batch=None, partition=YESTERDAY)] * 2, ended=0) == [{"m"}]


def test_no_file_becomes_larger_than_the_target() -> None:
    files = [file(f"{number:02}", 3 * KIB, partition=YESTERDAY) for number in range(5)]
    assert chosen(files, target=8 * KIB) == [{"00", "01"}, {"02", "03"}]
    assert chosen([file("a", 8 * KIB), file("b", 8 * KIB)], target=8 * KIB) == []


def test_a_day_of_commits_every_two_seconds_leaves_few_files_and_writes_a_row_a_few_times() -> None:
    """Two files of a batch, as a job with two tasks writes them, at 5,000 rows a second."""
    size = 60 * KIB
    names = count()
    live: list[TableFile] = []
    most = written = 0
    for batch in range(1, 43_200 + 1):
        live += [file(f"{next(names):09}", size, batch) for _ in range(2)]
        if batch % (FAN_IN // 2) == 0:
            for inputs in choose_merges(live, ended=batch, is_over=lambda _: False):
                merged = sum(item.size_bytes for item in inputs)
                gone = {item.path for item in inputs}
                live = [item for item in live if item.path not in gone]
                live.append(file(f"{next(names):09}", merged, None))
                written += merged
        most = max(most, len(live))
    assert most < 100
    assert written < 5 * 2 * 43_200 * size
    (last, *others) = choose_merges(live, ended=43_200, is_over=lambda _: True)
    assert len(others) < 4
    assert len(last) > 1
