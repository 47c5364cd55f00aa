from __future__ import annotations

import pytest

from siltstone.pipeline.jobs.learn import choose_threshold


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
