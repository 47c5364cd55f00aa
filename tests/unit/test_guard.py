from __future__ import annotations

import pytest

from siltstone.guard import contain


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
