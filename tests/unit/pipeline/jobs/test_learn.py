from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.jobs.learn import check_thresholds, choose_threshold, is_doubtful


@pytest.mark.parametrize(
    ("counts", "otherwise", "threshold"),
    [
        ([], 10, 10),
        ([1, 2, 5], 10, 10),
        ([1, 2, 5], 3, 5),
        ([1, 2, 5], -1, -1),
        # Names of a few kinds, values of a thousand devices.
        ([2, 3, 1000], 10, 3),
        ([1000], 10, 1),
        ([8, 40], 10, 8),
        # No jump between them: who set the threshold knows better.
        ([8, 9, 12, 20], 10, 10),
    ],
)
def test_a_level_varies_above_a_great_jump_in_the_numbers_of_words(
    counts: list[int], otherwise: int, threshold: int
) -> None:
    assert choose_threshold(counts, otherwise) == threshold


@pytest.mark.parametrize(
    ("count", "chosen", "otherwise", "doubtful"),
    [
        (30, 1, 100, True),
        (30, 1, -1, True),
        # Together either way, apart either way, and never together.
        (30, 1, 10, False),
        (30, 40, 100, False),
        (30, -1, 100, False),
    ],
)
def test_words_that_only_a_lower_threshold_puts_together_are_doubtful(
    count: int, chosen: int, otherwise: int, doubtful: bool
) -> None:
    assert is_doubtful(count, chosen=chosen, otherwise=otherwise) == doubtful


def test_thresholds_that_make_no_sense_are_refused() -> None:
    check_thresholds([-1, 10])
    check_thresholds([0])
    for thresholds in ([-1], [-1, -1]):
        with pytest.raises(
            UsageError,
            match="for every level no structure is learned; set at least one threshold from 0 to",
        ):
            check_thresholds(thresholds)
    for thresholds in ([-2], [1 << 31]):
        with pytest.raises(UsageError, match="thresholds must be one or more numbers from -1"):
            check_thresholds(thresholds)
