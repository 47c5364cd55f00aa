from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.store.tx.arguments import (
    TIMEOUT_MAX,
    bytes_of,
    key_of,
    text_of,
    timeout_of,
    topic_of,
    whole_number,
)
from tests.support.tx_builders import World


def test_arguments_of_their_kind_are_returned() -> None:
    assert whole_number("n", -(1 << 70)) == -(1 << 70)
    assert (text_of("n", "a"), bytes_of("n", b"a")) == ("a", b"a")
    assert (key_of("n", "ä"), topic_of("ä")) == ("ä".encode(), "ä".encode())
    assert [timeout_of(given) for given in (None, 0, 0.5, TIMEOUT_MAX)] == [
        None,
        0,
        0.5,
        TIMEOUT_MAX,
    ]


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1]])
def test_only_an_int_is_a_whole_number(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        whole_number("n", value)
    assert str(caught.value) == f"n must be a whole number: type={type(value).__name__}"


def test_text_bytes_and_keys_are_told_apart() -> None:
    with pytest.raises(UsageError, match=r"^n must be text: type=bytes$"):
        text_of("n", b"a")
    with pytest.raises(UsageError, match=r"^n must be bytes: type=bytearray$"):
        bytes_of("n", bytearray(b"a"))
    with pytest.raises(UsageError, match=r"^key must be text: type=int$"):
        key_of("key", 5)
    with pytest.raises(UsageError, match=r"^key has a lone surrogate: key='a\\ud800'$"):
        key_of("key", "a\ud800")
    with pytest.raises(UsageError, match=r"^topic must be text: type=bytes$"):
        topic_of(b"a")
    with pytest.raises(InvalidTopicError, match="lone surrogate"):
        topic_of("\ud800")


@pytest.mark.parametrize("value", [True, "1", [1]])
def test_a_timeout_is_a_number(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        timeout_of(value)
    assert str(caught.value) == f"timeout must be a number of seconds: type={type(value).__name__}"


@pytest.mark.parametrize("value", [-1, -0.001, TIMEOUT_MAX + 1, float("nan")])
def test_a_timeout_has_bounds(value: float) -> None:
    with pytest.raises(UsageError, match="timeout must be from 0 to 1,000,000,000 seconds"):
        timeout_of(value)


def test_a_transaction_refuses_arguments_of_the_wrong_kind_by_name() -> None:
    with World(timed=False) as world:
        tx = world.database.transaction()
        wrong: Any = 1.5
        calls: list[tuple[str, Callable[[], object]]] = [
            ("topic must be text", lambda: tx.get(wrong)),
            ("time_us must be a whole number", lambda: tx.get("a", wrong)),
            ("filter must be text", lambda: tx.read(wrong)),
            ("since_us must be a whole number", lambda: tx.read("a", wrong)),
            ("until_us must be a whole number", lambda: tx.read("a", 0, wrong)),
            ("topic must be text", lambda: tx.write(wrong, b"")),
            ("value must be bytes", lambda: tx.write("a", wrong)),
            ("time_us must be a whole number", lambda: tx.write("a", b"", wrong)),
            ("topic must be text", lambda: tx.add(wrong, 1)),
            ("amount must be a whole number", lambda: tx.add("a", wrong)),
            ("note must be bytes", lambda: tx.add("a", 1, wrong)),
            ("filter must be text", lambda: tx.delete(wrong)),
            ("since_us must be a whole number", lambda: tx.delete("a", wrong)),
            ("until_us must be a whole number", lambda: tx.delete("a", 0, wrong)),
            ("topic must be text", lambda: tx.require_present(wrong)),
            ("value must be bytes", lambda: tx.require_present("a", value=wrong)),
            ("topic must be text", lambda: tx.require_absent(wrong)),
            ("time_us must be a whole number", lambda: tx.require_absent("a", wrong)),
            ("topic must be text", lambda: tx.require_owner(wrong, 1)),
            ("serial must be a whole number", lambda: tx.require_owner("a", wrong)),
            ("a callback must be callable", lambda: tx.on_commit(wrong)),
        ]
        for message, call in calls:
            with pytest.raises(UsageError) as caught:
                call()
            assert str(caught.value) == f"{message}: type=float"
        # The transaction goes on as if nothing had been asked.
        tx.write("a", b"1")
        tx.commit()
        assert world.rows() == [("a", 0, b"1")]
