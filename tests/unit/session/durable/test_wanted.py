from __future__ import annotations

from collections.abc import Callable

from siltstone.session.durable.wanted import WantedFilter


def wish(guard: Callable[[bytes], bool] | None) -> WantedFilter:
    return WantedFilter(
        qos=1, no_local=False, keeps_retain=False, identifier=b"", since={}, guard=guard
    )


def test_without_a_guard_everything_may_be_read() -> None:
    assert wish(None).may_receive(b"secret")


def test_the_guard_decides_by_topic() -> None:
    made = wish(lambda topic: topic == b"open")
    assert (made.may_receive(b"open"), made.may_receive(b"secret")) == (True, False)
