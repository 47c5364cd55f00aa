from __future__ import annotations

from itertools import product

import pytest

from siltstone.session.policy import Policy, must_write

EVERYTHING = list(product((0, 1, 2), (False, True), (False, True)))


@pytest.mark.parametrize(
    ("policy", "written"),
    [
        ("always", EVERYTHING),
        ("subscribed", [case for case in EVERYTHING if case[1]]),
        ("offline", [case for case in EVERYTHING if case[0] and case[2]]),
        ("never", []),
    ],
)
def test_what_is_written_depends_on_the_policy_alone_where_it_says_always_or_never(
    policy: Policy, written: list[tuple[int, bool, bool]]
) -> None:
    assert [
        (qos, is_wanted, is_missed)
        for qos, is_wanted, is_missed in EVERYTHING
        if must_write(policy, qos=qos, is_wanted=is_wanted, is_missed=is_missed)
    ] == written
