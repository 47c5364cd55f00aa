"""Two processes that lead different shards of one database, on a real disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zlib import crc32

from siltstone import DatabaseSettings, Row
from siltstone.store.directory import Store

SETTINGS = DatabaseSettings(segment_bytes=64 * 1024, shards=2, shard_by="topic")
ZERO, ONE = (
    next(f"t/{n}" for n in range(100) if crc32(f"t/{n}".encode()) % 2 == shard) for shard in (0, 1)
)
ROUNDS = 40

# Appends rows to shard 1 and turns its generation over; reads what shard 0 has at the end.
CHILD = """
import sys
from pathlib import Path
from siltstone import Row
from siltstone.store.directory import Store

path, topic, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with Store(path, leads={"one": [1]}) as store:
    database = store.database("one")
    for number in range(rounds):
        database.append([Row(topic, b"1-%03d" % number)]).wait()
        if number % 4 == 3:
            database.seal()
    print("done", flush=True)
    sys.stdin.readline()
    print(database.count(sys.argv[4]))
"""


def test_each_process_leads_a_shard_and_reads_the_other(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Store(path) as store:
        store.create("one", SETTINGS)
    command = [sys.executable, "-c", CHILD, str(path), ONE, str(ROUNDS), ZERO]
    with Store(path, leads={"one": [0]}) as store:
        database = store.database("one")
        with (
            database.feed() as feed,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as child,
        ):
            assert child.stdin is not None
            assert child.stdout is not None
            for number in range(ROUNDS):
                database.append([Row(ZERO, b"0-%03d" % number)]).wait()
                if number % 4 == 3:
                    database.seal()
            assert child.stdout.readline() == "done\n"
            found: list[bytes] = []
            while len(found) < 2 * ROUNDS:
                read = feed.next(10)
                assert read is not None
                found += [row.value for row in read.rows()]
                feed.ack(read.position)
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == f"{ROUNDS}\n"
        for shard in (0, 1):
            wanted = [b"%d-%03d" % (shard, number) for number in range(ROUNDS)]
            assert [value for value in found if value.startswith(b"%d" % shard)] == wanted
    with Store(path) as store:
        database = store.database("one")
        assert (database.count(ZERO), database.count(ONE)) == (ROUNDS, ROUNDS)
        generations = {(info.slab.shard, info.slab.generation) for info in database.slabs()}
        ended = ROUNDS // 4 + 1
        assert generations == {(shard, n) for shard in (0, 1) for n in range(1, ended + 1)}
