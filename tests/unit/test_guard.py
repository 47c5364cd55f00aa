from __future__ import annotations

import pytest

from siltstone.guard import contain, contain_each


def fail() -> None:
    raise ValueError("ours")


def test_what_succeeds_is_done_and_nothing_else() -> None:
    done: list[str] = []
    contain(lambda: done.append("act"), lambda: done.append("otherwise"))
    assert done == ["act"]


def test_what_raises_is_logged_with_its_trace_and_the_other_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    contain(fail, lambda: done.append("otherwise"))
    contain(fail)
    assert done == ["otherwise"]
    assert [(r.getMessage(), str(r.exc_info[1])) for r in caplog.records if r.exc_info] == [
        ("internal_error", "ours")
    ] * 2


def test_an_argument_that_fails_is_told_and_the_next_ones_are_processed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[int] = []
    failed: list[int] = []

    def act(number: int) -> None:
        if number % 2:
            raise ValueError(f"number {number}")
        done.append(number)

    def otherwise(number: int) -> None:
        failed.append(number)
        if number == 1:
            raise ValueError("twice")

    contain_each(act, [0, 1, 2, 3, 4], otherwise)
    assert (done, failed) == ([0, 2, 4], [1, 3])
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == [
        "number 1",
        "twice",
        "number 3",
    ]
