from __future__ import annotations

from collections.abc import Callable

import pytest

from siltstone.cli.mqtt import lines
from siltstone.cli.mqtt.lines import LineFeed, LineSplitter
from siltstone.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb\r\nc", [b"a", b"", b"b\r", b"c"]),
        (b"\n", [b""]),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_lines_are_the_same_however_the_input_is_cut(
    text: bytes, expected: list[bytes], size: int
) -> None:
    splitter = LineSplitter()
    found = [
        line
        for start in range(0, len(text), size)
        for line in splitter.feed(text[start : start + size])
    ]
    assert found + splitter.end() == expected


def test_a_line_too_long_for_a_message_is_refused_before_it_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "VARIABLE_MAX", 10)
    splitter = LineSplitter()
    assert splitter.feed(b"1234567\n1234567") == [b"1234567"]
    with pytest.raises(UsageError, match="size_bytes=14"):
        splitter.feed(b"1234567")


class Loop:
    """Takes calls and makes them at once; a closed one refuses them, as asyncio's does."""

    def __init__(self, *, open_for: int = 1000) -> None:
        self.left = open_for

    def post(self, call: Callable[[], None]) -> None:
        if not self.left:
            raise RuntimeError("Event loop is closed")
        self.left -= 1
        call()


class Target:
    """What becomes of lines; it asks for more each time, unless it has had enough."""

    def __init__(self, read: Callable[[int], bytes], loop: Loop) -> None:
        self.taken: list[list[bytes]] = []
        self.ends: list[Exception | None] = []
        self.feed = LineFeed(read, loop.post, take=self.take, end=self.ends.append)

    def take(self, found: list[bytes]) -> None:
        self.taken.append(found)
        self.feed.ask()
        self.feed.ask()


def chunks(*parts: bytes | Exception) -> Callable[[int], bytes]:
    iterator = iter([*parts, b""])

    def read(_size: int) -> bytes:
        part = next(iterator)
        if isinstance(part, Exception):
            raise part
        return part

    return read


def test_a_feed_brings_a_chunk_for_each_time_it_is_asked_and_then_the_end() -> None:
    target = Target(chunks(b"a\nb", b"c", b"\nd"), Loop())
    target.feed.ask()
    target.feed.run()
    assert (target.taken, target.ends) == ([[b"a"], [], [b"bc"], [b"d"]], [None])


def test_what_breaks_the_input_is_told_after_the_lines_before_it() -> None:
    error = OSError(5, "I/O error")
    target = Target(chunks(b"a\nb", error), Loop())
    target.feed.ask()
    target.feed.run()
    # The line that was cut off is no line.
    assert (target.taken, target.ends) == ([[b"a"], []], [error])


def test_a_feed_ends_quietly_when_its_loop_is_closed() -> None:
    target = Target(chunks(b"a\n", b"b\n"), Loop(open_for=1))
    target.feed.ask()
    target.feed.run()
    assert (target.taken, target.ends) == ([[b"a"]], [])


def test_an_input_that_is_closed_under_it_ends_it_without_a_word() -> None:
    def read(_size: int) -> bytes:
        raise ValueError("I/O operation on closed file.")

    posted: list[object] = []
    feed = LineFeed(read, posted.append, take=lambda _: None, end=lambda _: posted.append("ended"))
    feed.ask()
    feed.run()
    assert posted == []
