"""`siltstone serve` that counts its objects on SIGUSR2.

The garbage collector is disabled, so the count includes all garbage since the start: objects in
reference cycles, which only the collector frees.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
from collections import Counter

from siltstone.cli.main import run as run_command


def _count(*_: object) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    garbage = Counter(type(each).__qualname__ for each in gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()
    event = {"event": "counted", "level": "info", "live": len(gc.get_objects()), "garbage": garbage}
    sys.stderr.write(json.dumps(event) + "\n")
    sys.stderr.flush()


def run() -> None:
    """Serve as the command does."""
    gc.disable()
    signal.signal(signal.SIGUSR2, _count)
    run_command()


if __name__ == "__main__":
    run()
