"""Run the compiled modules on random inputs from a seed, in the imported form.

    python -m tests.support.forms SEED SUBJECT:FIRST:STOP…

Each subject draws its own inputs, so a case is the same in every form and in every run. The output
has one line for each subject, with the digest of the results of all cases. With --show the results
themselves are printed, and with --touched the functions that ran, with their modules, which only
the pure form can report.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from random import Random
from types import FrameType
from typing import Any, Final

from siltstone.version import form
from tests.support import form_brokers, form_log, form_loop, form_packets, form_storage

# Each subject, with the number of cases that takes as long as a thousand of the fastest subject.
SUBJECTS: Final[dict[str, tuple[Callable[[Random], Any], int]]] = {
    "splitter": (form_packets.splitter, 1000),
    "connection": (form_packets.connection, 500),
    "publish": (form_packets.publisher, 500),
    "flow": (form_packets.flow, 250),
    "keys": (form_storage.keys, 1000),
    "matcher": (form_storage.matcher, 500),
    "structure": (form_storage.structure, 250),
    "conflicts": (form_storage.conflicts, 500),
    "frames": (form_storage.frames, 50),
    "loops": (form_storage.loops, 250),
    "snapshot": (form_storage.snapshot, 25),
    "commits": (form_storage.commits, 10),
    "changes": (form_log.change_records, 500),
    "committer": (form_log.committer, 25),
    "clock": (form_loop.clock, 250),
    "shell": (form_loop.shell, 25),
    "queue": (form_log.queue, 25),
    "volatile": (form_brokers.volatile, 10),
    "memory": (form_brokers.memory, 10),
    "durable": (form_brokers.durable, 3),
    "channel": (form_brokers.channel, 20),
}


def outcome(subject: str, seed: int, case: int) -> str:
    """Return the result of one case, as text."""
    act, _ = SUBJECTS[subject]
    return repr(act(Random(f"{seed}/{subject}/{case}")))


def digest(subject: str, seed: int, cases: range) -> str:
    """Return one digest of the results of many cases."""
    total = sha256()
    for case in cases:
        total.update(outcome(subject, seed, case).encode("utf-8", "surrogatepass"))
    return total.hexdigest()


class Touched:
    """The functions of the package that were called."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            self.functions.add((code.co_filename, code.co_qualname))

    def named(self) -> list[tuple[str, str]]:
        """Return the path of the module of each below `src`, and its qualified name."""
        parts = ((*name.rpartition("/siltstone/"), called) for name, called in self.functions)
        return sorted(
            {(f"src/siltstone/{name}", called) for _, found, name, called in parts if found}
        )


def _tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def main(arguments: list[str]) -> None:
    options = {each for each in arguments if each.startswith("--")}
    seed, *parts = [each for each in arguments if each not in options]
    _tell("form", form())
    touched = Touched()
    if "--touched" in options:
        threading.setprofile(touched)
        sys.setprofile(touched)
    for part in parts:
        subject, first, stop = part.split(":")
        cases = range(int(first), int(stop))
        if "--show" in options:
            for case in cases:
                _tell(part, case, outcome(subject, int(seed), case))
        else:
            _tell(part, digest(subject, int(seed), cases))
    sys.setprofile(None)
    for module, called in touched.named():
        _tell("touched", module, called)


if __name__ == "__main__":
    main(sys.argv[1:])
