"""The entry point of the command `siltstone`.

Loading the package takes a moment. Until it is loaded, Ctrl-C ends the process without a traceback.
This module is not part of the package, so that it can set the signals first.
"""

from __future__ import annotations

import signal
import sys


def run() -> None:
    """Load the command line, and run it."""
    # If the parent process set SIGINT to be ignored, it stays ignored.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["serve"]:
        # A running broker reloads or saves on these signals. They must not end one that starts.
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
    from siltstone.cli.main import run as run_command  # noqa: PLC0415 - loads the package

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()
