from __future__ import annotations

import os
import resource
import signal

import pytest

from siltstone.errors import DiskError
from siltstone.fs.process import catches_signal, memory_bytes, raise_file_limit, send_signal


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        assert raise_file_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_tells_which_signals_it_catches() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    assert catches_signal(os.getpid(), signal.SIGUSR1) is True
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert catches_signal(os.getpid(), signal.SIGUSR1) is False
    assert catches_signal(2**22 + 1, signal.SIGUSR1) is False


def test_a_signal_is_sent_and_one_to_nobody_is_refused() -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: caught.append(number))
    try:
        send_signal(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught == [signal.SIGUSR1]
    with pytest.raises(DiskError, match=r"send_signal failed: .* path=/proc/4194305"):
        send_signal(2**22 + 1, signal.SIGUSR1)


def test_the_memory_of_the_process_is_no_more_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = memory_bytes()
    assert 0 < whole <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 21))
    assert memory_bytes() == 1 << 20
