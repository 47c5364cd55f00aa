"""Management verbs of commands: sent to the broker that runs, or run here with the lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from siltstone.cli.opening import is_held_by_broker, note_recovery, open_creating, open_reading
from siltstone.cli.output.output import note
from siltstone.errors import LockedError
from siltstone.manage.running import RunningBroker, find_broker
from siltstone.manage.verb import Host
from siltstone.manage.verbs import VERBS, run_verb

# A broker that starts or stops has the lock, but no socket. The command waits for either.
_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.05
T = TypeVar("T")


def manage(data: Path, name: str, request: BaseModel, *, creates: bool = False) -> Any:
    """Run a verb on a data directory, by its broker if one runs; return the response.

    Only a verb that `creates` may create the directory.

    Raises: UsageError, LockedError if a process other than a broker has the lock; the errors of the
    verb.
    """

    def here() -> Any:
        if not creates:
            open_reading(data).close()
        with open_creating(data) as store:
            return run_verb(Host(store=store, opened=note_recovery), name, request)

    return broker_or_here(data, lambda broker: broker.run(VERBS[name], request), here)


def note_copy_returns(name: str) -> None:
    """Note that only the copy of a stopped site was dropped."""
    note(
        f"only the copy of this site is deleted: while the cluster has {name}, this site copies it "
        f"again after its start"
    )


def broker_or_here(data: Path, there: Callable[[RunningBroker], T], here: Callable[[], T]) -> T:
    """Call `there` with the running broker, or `here` if none runs."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        broker = find_broker(data)
        if broker is not None:
            with broker:
                return there(broker)
        try:
            return here()
        except LockedError:
            if time.monotonic() > deadline or not is_held_by_broker(data):
                raise
        time.sleep(_PAUSE_SECONDS)
