from __future__ import annotations

from siltstone.clock import ManualClock
from siltstone.flight.tokens import LIFETIME_SECONDS, TOKENS_MAX, Tokens


def test_a_token_has_its_holder_until_its_time_is_over() -> None:
    clock = ManualClock()
    tokens = Tokens[str](clock)
    first = tokens.issue("alice")
    clock.advance(LIFETIME_SECONDS / 2)
    second = tokens.issue("bob")
    assert [tokens.holder(each) for each in (first, second, "x", "")] == [
        "alice",
        "bob",
        None,
        None,
    ]
    clock.advance(LIFETIME_SECONDS / 2)
    assert [tokens.holder(each) for each in (first, second)] == [None, "bob"]
    tokens.clear()
    assert tokens.holder(second) is None


def test_of_very_many_tokens_the_oldest_are_forgotten() -> None:
    tokens = Tokens[int](ManualClock())
    given = [tokens.issue(number) for number in range(TOKENS_MAX + 2)]
    assert len(set(given)) == TOKENS_MAX + 2
    assert [tokens.holder(given[place]) for place in (0, 1, 2, -1)] == [
        None,
        None,
        2,
        TOKENS_MAX + 1,
    ]
