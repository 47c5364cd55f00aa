"""Limits, priority and memory of this process, and signals to others."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import PurePath
from typing import Final, NoReturn

from siltstone.fs.translate import translate

# The memory limit of a container, in version 2 and version 1 of cgroups.
_MEMORY_LIMITS: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def raise_file_limit() -> int:
    """Raise the limit of open files of this process to its maximum; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def lower_priority() -> None:
    """Let all other processes run before this one, if the system can."""
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        os.nice(19)


def open_file_count() -> int:
    """Return the number of open descriptors of this process."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError as exc:
        raise translate(exc, "list", PurePath("/proc/self/fd")) from exc


def memory_left_bytes() -> int:
    """Return how much more memory this process may take, by machine, container and rlimit."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    _, resident_bytes = _used_memory(page_bytes)
    limits = [page_bytes * os.sysconf("SC_PHYS_PAGES")]
    for name in _MEMORY_LIMITS:
        with suppress(OSError, ValueError), open(name, encoding="ascii") as file:
            limits.append(int(file.read()))
    left_bytes = min(limits) - resident_bytes
    addresses = address_space_left_bytes()
    if addresses is not None:
        left_bytes = min(left_bytes, addresses)
    return max(0, left_bytes)


def address_space_left_bytes() -> int | None:
    """Return how much more this process may map, by rlimit; None if there is no limit.

    The limit counts addresses, whether there is memory behind them or not.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    mapped_bytes, _ = _used_memory(os.sysconf("SC_PAGE_SIZE"))
    return max(0, soft - mapped_bytes)


def _used_memory(page_bytes: int) -> tuple[int, int]:
    """Return the bytes that are mapped, and those of them that are in memory; 0 if not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            mapped, resident = file.read().split()[:2]
    except (OSError, ValueError):
        return 0, 0
    return int(mapped) * page_bytes, int(resident) * page_bytes


def boot_id() -> str:
    """Return an id that is unique to this boot of the machine; empty if there is none."""
    try:
        # Read bytes: a process that has dropped its privileges cannot load a codec.
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        return ""


def end_process(status: int) -> NoReturn:
    """Exit at once, without waiting for threads of libraries that may never end."""
    os._exit(status)


def catches_signal(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, so that the signal does not end it."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def process_arguments(pid: int) -> list[str]:
    """Return the command line of a process; an empty list if it does not exist."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [part.decode("utf-8", "surrogateescape") for part in file.read().split(b"\0")]
    except OSError:
        return []


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process.

    Raises: DiskError if the process does not exist or belongs to another user.
    """
    try:
        os.kill(pid, number)
    except OSError as exc:
        raise translate(exc, "send_signal", PurePath(f"/proc/{pid}")) from exc
