"""Compaction in another process, beside readers of other processes and beside a broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import pytest

import siltstone
from siltstone import Database, DatabaseSettings, Row
from siltstone.cli.main import execute
from siltstone.errors import (
    ClosedError,
    CorruptionError,
    NotFoundError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.log.compact.encode import UnfitError
from siltstone.store.log.compact.process import ChildRewriter
from siltstone.store.log.compact.rewrite import Rewritten, rewrite_segment
from siltstone.store.segment.frame import HEADER_BYTES
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES
from siltstone.store.segment.sift import index_path
from siltstone.store.shard.compaction import Job
from tests.support.broker_process import broker_process, clean_environment
from tests.support.compacting import compact_all
from tests.support.compaction_reader import NAME, STEP, TOPIC
from tests.support.mqtt_socket import connected, publishes
from tests.support.reading import check_everything
from tests.support.small_disk import mounted, take_the_rest
from tests.support.watcher import watching

SMALL = DatabaseSettings(segment_bytes=64 * 1024)
WORKER = (sys.executable, "-m", "siltstone.store.log.compact.worker")
READER = (sys.executable, "-m", "tests.support.compaction_reader")
# After its first frame a process rests for longer than a test.
FOR_EVER = 1e7


def fill(database: Database, first: int, rows: int) -> None:
    """Append rows with rising numbers, one in each frame."""
    for number in range(first, first + rows):
        database.append([Row(TOPIC, b"%d" % number)], durability="written").wait()


@contextmanager
def sealed(path: Path, *, slabs: int = 1) -> Iterator[Database]:
    with siltstone.open(path) as store:
        database = store.create(NAME, SMALL)
        for number in range(slabs):
            fill(database, 20 * number, 20)
            database.seal()
        yield database


@contextmanager
def rewriting(rest: float = 0.0) -> Iterator[ChildRewriter]:
    rewriter = ChildRewriter(rest)
    try:
        yield rewriter
    finally:
        rewriter.close()
        rewriter.rest()


def child_of(rewriter: ChildRewriter) -> int:
    child = rewriter._child  # noqa: SLF001 - the process is what is tested
    assert child is not None
    return child.pid


def test_a_process_writes_what_this_one_would_write(tmp_path: Path) -> None:
    with sealed(tmp_path / "data", slabs=2) as database, rewriting() as rewriter:
        before = check_everything(database)
        processes = []
        for number, job in enumerate(database.compaction.jobs()):
            target, here = tmp_path / f"{number}.seg", tmp_path / f"here-{number}.seg"
            made = rewriter(job.source, target)
            processes.append(child_of(rewriter))
            assert made == rewrite_segment(PosixFileSystem(), job.source, here)
            assert target.read_bytes() == here.read_bytes()
            there, beside = Path(index_path(target)), Path(index_path(here))
            assert there.read_bytes() == beside.read_bytes()
            assert database.compaction.run(job, rewriter) is not None
        # One process for all segments, until it rests.
        assert len(set(processes)) == 1
        assert os.getpriority(os.PRIO_PROCESS, processes[0]) == 19
        rewriter.rest()
        assert not Path(f"/proc/{processes[0]}").exists()
        assert check_everything(database) == before
    with siltstone.open(tmp_path / "data") as store:
        assert check_everything(store.database(NAME)) == before


def one_job(database: Database) -> Job:
    (job,) = database.compaction.jobs()
    return job


def test_the_errors_of_the_process_are_those_of_this_one(tmp_path: Path) -> None:
    with sealed(tmp_path / "data") as database, rewriting() as rewriter:
        job = one_job(database)
        source = Path(job.source)
        errors: list[tuple[type[SiltstoneError | UnfitError], Path]] = [
            (NotFoundError, tmp_path / "missing.seg")
        ]
        # The first frame has the state; the second one is damaged.
        damaged = tmp_path / "damaged" / source.name
        damaged.parent.mkdir()
        data = bytearray(source.read_bytes())
        frame_bytes = int.from_bytes(
            data[SEGMENT_HEADER_BYTES + 8 : SEGMENT_HEADER_BYTES + 12], "little"
        )
        data[SEGMENT_HEADER_BYTES + frame_bytes + HEADER_BYTES + 1] ^= 1
        damaged.write_bytes(data)
        index = Path(index_path(damaged))
        index.write_bytes(Path(index_path(source)).read_bytes())
        errors.append((CorruptionError, damaged))
        # The index of the compacted segment beside the old one.
        other = tmp_path / "other" / source.name
        other.parent.mkdir()
        made = tmp_path / "made.seg"
        rewriter(job.source, made)
        other.write_bytes(source.read_bytes())
        Path(index_path(other)).write_bytes(Path(index_path(made)).read_bytes())
        errors.append((UnfitError, other))
        target = tmp_path / "target.seg"
        here = partial(rewrite_segment, PosixFileSystem())
        ways: tuple[Callable[[PurePath, PurePath], Rewritten], ...] = (rewriter, here)
        for kind, path in errors:
            found = []
            for rewrite in ways:
                target.unlink(missing_ok=True)
                with pytest.raises(kind) as caught:
                    rewrite(path, target)
                found.append(caught.value)
            assert str(found[0]) == str(found[1])
            if isinstance(found[0], CorruptionError):
                assert isinstance(found[1], CorruptionError)
                assert (found[0].path, found[0].offset) == (found[1].path, found[1].offset)
        # The process goes on after an error.
        assert rewriter(job.source, target).rows == 20


def test_a_full_disk_leaves_the_old_segment(tmp_path: Path) -> None:
    with (
        sealed(tmp_path / "data") as database,
        mounted(tmp_path / "small", 256 * 1024) as small,
        rewriting() as rewriter,
    ):
        take_the_rest(small / "rest")
        with pytest.raises(StorageFullError):
            rewriter(one_job(database).source, small / "target.seg")


def test_a_process_that_was_killed_leaves_the_old_segment_and_another_one_starts(
    tmp_path: Path,
) -> None:
    with sealed(tmp_path / "data") as database, rewriting() as rewriter:
        before = check_everything(database)
        rewriter(one_job(database).source, tmp_path / "target.seg")
        killed = child_of(rewriter)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(ClosedError, match="has ended"):
            database.compaction.run(one_job(database), rewriter)
        assert check_everything(database) == before
        assert database.compaction.run(one_job(database), rewriter) is not None
        assert child_of(rewriter) != killed
        assert check_everything(database) == before


def test_closing_ends_the_process_in_the_middle_of_a_segment(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with sealed(path) as database:
        before = check_everything(database)
        with rewriting(FOR_EVER) as rewriter, ThreadPoolExecutor(1) as pool:
            working = pool.submit(database.compaction.run, one_job(database), rewriter)
            while not list((path / "data" / NAME / "compacting").glob("*.seg")):
                assert not working.done()
            rewriter.close()
            with pytest.raises(ClosedError):
                working.result()
            with pytest.raises(ClosedError, match="the database is closed"):
                rewriter(one_job(database).source, tmp_path / "target.seg")
        assert list((path / "data" / NAME / "compacting").iterdir()) == []
        assert check_everything(database) == before


@pytest.mark.parametrize("during", ["a segment", "nothing"])
def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path, during: str) -> None:
    with sealed(tmp_path / "data") as database:
        source, target = one_job(database).source, tmp_path / "target.seg"
        process = subprocess.Popen(
            WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()
        )
        with process:
            assert process.stdin is not None
            if during == "a segment":
                request = {"source": str(source), "target": str(target), "rest": FOR_EVER}
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                while not target.exists():
                    assert process.poll() is None
            process.stdin.close()
            assert process.wait(20.0) == 0
            assert process.stdout is not None
            assert process.stdout.read() == b""


def test_readers_of_another_process_go_on_while_segments_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with siltstone.open(path) as store:
        database = store.create(NAME, SMALL)
        fill(database, 0, 3 * STEP)
        database.seal()
        fill(database, 3 * STEP, 3 * STEP)
        database.seal()
        fill(database, 6 * STEP, STEP)
        process = subprocess.Popen(
            [*READER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
        )
        with process, suppress(BrokenPipeError):
            assert process.stdin is not None
            assert process.stdout is not None

            def met() -> list[int]:
                assert process.stdout is not None
                return [int(word) for word in process.stdout.readline().split()]

            assert met() == [STEP, STEP, STEP, 7 * STEP]
            # All three have mapped the first segment, and not the others.
            assert len(compact_all(database)) == 2
            process.stdin.write(b"on\n")
            process.stdin.flush()
            assert met() == [2 * STEP, 2 * STEP, 2 * STEP, 7 * STEP]
            database.seal()
            assert len(compact_all(database)) == 1
            fill(database, 7 * STEP, 5)
            process.stdin.close()
            # The batch has the rows that were there when it began, the others those of now.
            assert met() == [7 * STEP, 7 * STEP, 7 * STEP + 5, 7 * STEP + 5]
        assert process.returncode == 0


def test_the_command_compacts_with_and_without_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"

    def ran(*args: str) -> str:
        assert execute([*args, "--data", str(path)]) == 0
        return capsys.readouterr().out

    def document(*args: str) -> Any:
        return json.loads(ran(*args, "--json"))

    settings = {"storage.compaction": "off"}
    with broker_process(path, settings=settings) as broker, connected(broker.port, "a") as client:
        publish(client, 0)
        ran("seal", "messages")
        said = ran("compact", "messages", "--dry-run")
        assert said.startswith("would compact 1 segment with 20 rows of database messages: ")
        planned = document("compact", "messages", "--dry-run")
        assert planned.keys() == {"database", "segments", "rows", "size_bytes"}
        assert (planned["segments"], planned["rows"]) == (1, 20)
        assert compacted(path) == [0, 0]
        made = document("compact", "messages")
        assert made == planned | {"compacted_bytes": made["compacted_bytes"]}
        assert 0 < made["compacted_bytes"] < made["size_bytes"]
        assert compacted(path) == [1, 0]
        publish(client, 20)
        ran("seal", "messages")
    # The broker has stopped.
    said = ran("compact", "messages")
    assert said.startswith("compacted 1 segment with 20 rows of database messages: ")
    assert compacted(path) == [1, 1, 0]
    said = ran("compact", "messages")
    assert said == "compacted 0 segments with 0 rows of database messages: 0 B to 0 B\n"
    with siltstone.open(path, read_only=True) as store:
        rows = check_everything(store.database("messages"))
    assert [int(row.value) for row in rows] == list(range(40))


def test_a_broker_compacts_in_the_background_and_reports_it(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with broker_process(path, settings={"sys_interval": 1}) as broker:
        with connected(broker.port, "a") as client:
            publish(client, 0)
        assert execute(["seal", "messages", "--data", str(path)]) == 0
        event = broker.wait_for("segment_compacted")
        assert {key: event[key] for key in ("database", "slab", "rows", "frames")} == {
            "database": "messages",
            "slab": "0/1",
            "rows": 20,
            "frames": "21 to 2",
        }
        before, after = map(int, str(event["bytes"]).split(" to "))
        expected = {
            "$SYS/broker/store/compacted/messages": b"20",
            "$SYS/broker/store/compacted/segments": b"1",
            "$SYS/broker/store/compacted/saved bytes": b"%d" % (before - after),
        }
        with watching(broker.port, "$SYS/broker/store/compacted/+") as watcher:

            def told() -> dict[str, bytes]:
                return {topic: payload for topic, payload, _, _ in watcher.messages}

            watcher.wait_for(lambda _: told() == expected)
            assert told() == expected
        assert compacted(path) == [1, 0]


def publish(client: Any, first: int) -> None:
    """Publish one message after the other: each is a frame."""
    for message in publishes(TOPIC, [b"%d" % number for number in range(first, first + 20)]):
        assert message.packet_id is not None
        client.publish(TOPIC, message.payload, packet_id=message.packet_id)


def compacted(path: Path) -> list[int]:
    """Return the number of compacted segments of each slab."""
    with siltstone.open(path, read_only=True) as store:
        return [slab.compacted for slab in store.database("messages").slabs()]
