"""A store with a low limit of open files: `python -m tests.support.few_descriptors DIRECTORY
LIMIT`.

It prints one line for each step.
"""

from __future__ import annotations

import os
import resource
import sys

import siltstone
from siltstone.store.shard.block_log import BlockLog
from siltstone.topiclog.log import open_topic_logs
from tests.support.topiclog import SMALL, all_values, append

TOPICS = 120
BIG = b"b" * 40_000


def take_all() -> list[int]:
    """Open files until no descriptor is left."""
    taken: list[int] = []
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return taken


def logs_of(store: siltstone.Store) -> list[BlockLog]:
    logs, database = open_topic_logs(store, SMALL)
    for number in range(len(logs.topics()), TOPICS):
        logs.create_topic(f"t/{number}")
    found = [database.block_logs().find(f"t/{number}") for number in range(TOPICS)]
    return [log for log in found if log is not None]


def tell(done: str, found: object) -> None:
    sys.stdout.write(f"{done} {found}\n")


def main() -> None:
    """Keep more topics than descriptors, then start a new segment without any left."""
    path, limit = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with siltstone.open(path) as store:
        logs = logs_of(store)
        tell("sent", {append(log, b"m") for log in logs})
    with siltstone.open(path) as store:
        logs = logs_of(store)
        tell("recovered", {tuple(all_values(log)) for log in logs})
        taken = take_all()
        # Two of these messages do not fit into a segment; the last topic has no open descriptor.
        tell("rolled", [append(log, BIG) for log in (logs[0], logs[-1]) for _ in range(3)])
        for descriptor in taken:
            os.close(descriptor)
        tell("goes on", [append(log, b"x") for log in (logs[0], logs[-1])])


if __name__ == "__main__":
    main()
