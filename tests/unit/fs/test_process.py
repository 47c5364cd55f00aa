from __future__ import annotations

import os
import resource
import signal

import pytest

from siltstone.errors import DiskError
from siltstone.fs.process import catches_signal, memory_left_bytes, raise_file_limit, send_signal


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


def test_the_memory_that_is_left_is_what_no_limit_and_no_use_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    left = memory_left_bytes()
    # A Python that has imported pytest takes more than 10 MiB.
    assert 0 < left < whole - (10 << 20)
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = mapped + (100 << 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    assert abs(memory_left_bytes() - (100 << 20)) < 50 << 20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, resource.RLIM_INFINITY))
    assert memory_left_bytes() == 0
