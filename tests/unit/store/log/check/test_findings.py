from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.store.log.check.findings import (
    Damage,
    End,
    Finding,
    Survey,
    lost_serials,
)
from siltstone.store.segment.segment import RESERVE_REACH, segment_path
from tests.support.frames import NOW_US, SLAB, new_segment, rows_frame, slab_fs, store
from tests.support.learned import EXPECTED

PATH = segment_path(SLAB, 0)


def survey_of_one_row(*, reserved: int = 0, next_base: int | None = None) -> Survey:
    writer = new_segment(slab_fs())
    store(writer, rows_frame({1: [b"a"]}))
    writer.reserve(reserved)
    survey = Survey(path=PATH, expected=replace(EXPECTED, next_base=next_base))
    survey.segment = writer.segment
    return survey


@pytest.mark.parametrize(
    ("rows", "at_most", "text"),
    [
        (0, False, "no row is lost"),
        (3, False, "3 rows are lost: serials 7 to 9"),
        (3, True, "at most 3 rows are lost: serials 7 to 9"),
    ],
)
def test_lost_serials_are_told_by_first_and_last(rows: int, at_most: bool, text: str) -> None:
    assert lost_serials(7, rows, at_most=at_most) == text


def test_damage_tells_why_and_what_is_lost() -> None:
    damage = Damage(start=8, stop=16, first_serial=7, rows=3, timestamp_us=0, reason="torn apart")
    assert damage.problem == "torn apart; 3 rows are lost: serials 7 to 9"


def test_a_survey_gathers_damage_and_notes_of_its_file() -> None:
    survey = Survey(path=PATH, expected=EXPECTED)
    survey.damage(5, "bad")
    survey.note(6, "odd")
    assert survey.findings == [
        Finding(path=PATH, offset=5, problem="bad", severity="damage", repaired=""),
        Finding(path=PATH, offset=6, problem="odd", severity="note", repaired=""),
    ]


def test_without_a_segment_nobody_knows_where_it_ends() -> None:
    survey = Survey(path=PATH, expected=EXPECTED)
    assert (survey.end(), survey.reserved_serial()) == (None, 0)


def test_a_segment_ends_behind_its_last_row_with_what_it_has_learned() -> None:
    survey = survey_of_one_row()
    survey.structure.learn(b"a")
    survey.structure.take_pending()
    survey.last_timestamp_us = NOW_US
    assert survey.end() == End(
        next_serial=1,
        last_timestamp_us=NOW_US,
        structure=survey.structure.export(),
        producers=b"",
        has_holes=False,
    )


@pytest.mark.parametrize(
    ("reserved", "next_base", "believed"),
    [
        (50, None, 50),
        (50, 50, 50),
        (50, 49, 0),
        (RESERVE_REACH + 1, None, RESERVE_REACH + 1),
        (RESERVE_REACH + 2, None, 0),
    ],
)
def test_a_reserved_serial_is_believed_within_reach(
    reserved: int, next_base: int | None, believed: int
) -> None:
    survey = survey_of_one_row(reserved=reserved, next_base=next_base)
    end = survey.end()
    assert end is not None
    assert (survey.reserved_serial(), end.next_serial) == (believed, max(1, believed))
