"""The command `siltstone` before its code is loaded, which takes a moment: Ctrl-C ends it quietly.

It stands beside the package and loads nothing of it before that is arranged.
"""

from __future__ import annotations

import signal
import sys


def run() -> None:
    """Load the command line, and run it."""
    # Who starts a command that ignores interrupts wants it so.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["serve"]:
        # A broker that starts has nothing to reload or save yet, and must not end by being asked.
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
    from siltstone.cli.main import run as run_command  # noqa: PLC0415 - this is what takes time

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()
