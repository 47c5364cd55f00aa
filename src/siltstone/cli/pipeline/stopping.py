"""The end of a job that runs until it is stopped: a signal lets it finish its batch first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether a job was asked to stop. A second signal interrupts it at once."""

    def __init__(self) -> None:
        self._event = Event()

    @property
    def asked(self) -> bool:
        """Whether the job was asked to stop."""
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Wait this long, or until the job is asked to stop."""
        self._event.wait(seconds)

    def listen(self) -> None:
        """Take the signals; Spark takes SIGINT for itself when it starts."""
        for number in _SIGNALS:
            signal.signal(number, self._asked)

    def watch(self, descriptor: int) -> None:
        """Stop when a stream ends: that of the process that started this one."""

        def read() -> None:
            # A buffered stream has a lock, which this thread would hold when Python exits: it
            # would abort.
            with open(descriptor, "rb", buffering=0, closefd=False) as stream:
                while stream.read(1):
                    pass
            self._event.set()

        Thread(target=read, daemon=True).start()

    def _asked(self, _number: int, _frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()


@contextmanager
def stopping(*, listens: bool) -> Iterator[StopRequest]:
    """Yield an event that signals set; without `listens`, signals keep their meaning."""
    stop = StopRequest()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if listens:
        stop.listen()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            # None stands for a handler that Python did not set.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
