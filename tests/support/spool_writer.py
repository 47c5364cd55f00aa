"""A process that stores numbered entries, discards old ones, and prints both until it is killed.

python -m tests.support.spool_writer DIR FIRST
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from siltstone.spool import Entry, ensure

KEPT = 20


def write(directory: Path, first: int) -> None:
    """Store batches for ever; keep the last entries, discard older ones."""
    out = sys.stdout
    held: list[Entry] = []
    with ensure(directory) as spool:
        out.write("open\n")
        for number in count(first):
            held += spool.store_many([(b"%d" % number * 50, f"n{number}"), (b"", f"e{number}")])
            out.write(f"stored {number} {held[-2].id} {held[-1].id}\n")
            out.flush()
            while len(held) > KEPT:
                old = held.pop(0)
                out.write(f"discarding {old.id}\n")
                out.flush()
                spool.discard(old)
                out.write(f"discarded {old.id}\n")
                out.flush()


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
