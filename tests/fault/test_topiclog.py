"""Topic logs whose power goes, whose process is killed, whose disk is full or has odd things."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePath
from random import Random

import pytest

import siltstone
from siltstone.errors import (
    CorruptionError,
    DiskError,
    NotFoundError,
    PoisonedError,
    StorageFullError,
)
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.mqtt.reason import Reason
from siltstone.store.database import Database
from siltstone.store.log.check.verify import verify_database
from siltstone.store.shard.block_log import BlockLog, BlockLogs
from siltstone.topiclog.client import TopicLogClient
from siltstone.topiclog.log import DATABASE
from tests.fault.test_odd_entries import kinds, make_odd
from tests.support.broker_process import run_command
from tests.support.builders import PATH, SEGMENT_BYTES
from tests.support.mqtt_socket import MqttSocket
from tests.support.topiclog import (
    LogWorld,
    all_values,
    append,
    append_large,
    fill,
    half_send,
    log_port,
    served,
    served_by_process,
    taken,
)

BIG = 20_000
SEEDS = range(3)


@dataclass
class Attempt:
    """Logs whose power will go, and what their caller knows."""

    world: LogWorld
    database: Database
    logs: BlockLogs
    topics: list[str] = field(default_factory=list)
    creating: str = ""
    acknowledged: list[bytes] = field(default_factory=list)
    sending: list[bytes] = field(default_factory=list)

    def log(self) -> BlockLog:
        found = self.logs.find("t")
        assert found is not None
        return found

    def create(self, topic: str) -> None:
        self.creating = topic
        self.logs.add(topic)
        self.topics.append(topic)

    def send(self, store: Callable[..., int], *values: bytes) -> None:
        self.sending = list(values)
        first = store(self.log(), *values)
        assert first == len(self.acknowledged)
        self.acknowledged += values
        self.sending = []


Act = Callable[[Attempt], None]


def create_more(attempt: Attempt) -> None:
    """The first of these begins a journal, the others are lines of it, and closing folds it."""
    for topic in ("u", "v/w", "x"):
        attempt.create(topic)
    attempt.database.close()


def send_small(attempt: Attempt) -> None:
    attempt.send(append, b"1", b"22")
    attempt.send(append, b"333")


def send_large(attempt: Attempt) -> None:
    attempt.send(append_large, b"L" * BIG)
    attempt.send(append, b"small")
    attempt.send(append_large, b"M" * 500, b"N" * 700)


def send_rolling(attempt: Attempt) -> None:
    for number in range(4):
        attempt.send(append_large, b"%d" % number * BIG)
    attempt.send(append_large, b"X" * 2 * SEGMENT_BYTES)


def send_first_and_too_large(attempt: Attempt) -> None:
    attempt.send(append_large, b"F" * 2 * SEGMENT_BYTES)
    attempt.send(append, b"after")


def send_out_of_order(attempt: Attempt) -> None:
    """Fill two places in another order than they were taken, and give one up between."""
    log = attempt.log()
    first, second, third = (taken(log, 900) for _ in range(3))
    attempt.send(append, b"between")
    attempt.sending = [b"3" * 900]
    log.append_room(fill(third, b"3" * 900), third).wait()
    attempt.acknowledged += attempt.sending
    fill(second, b"never" * 100)
    log.give_up_room(second)
    attempt.sending = [b"1" * 900]
    log.append_room(fill(first, b"1" * 900), first).wait()
    attempt.acknowledged += attempt.sending
    attempt.sending = []
    attempt.send(append_large, b"4" * 890)


def abandon(attempt: Attempt) -> None:
    """Let a place at the end go half filled, and write over it."""
    room = taken(attempt.log(), 3000)
    fill(room, b"abandoned" * 100)
    attempt.log().give_up_room(room)
    attempt.send(append, b"over it")


SCENARIOS: dict[str, Act] = {
    "create topics": create_more,
    "send small": send_small,
    "send large": send_large,
    "roll": send_rolling,
    "the first is larger than a segment": send_first_and_too_large,
    "places filled out of order": send_out_of_order,
    "a place given up": abandon,
}


def crashes(act: Act) -> Iterator[Attempt]:
    """Yield the attempt after the power went at each operation in turn."""
    for operations in count():
        world = LogWorld()
        # Closing folds the journal, for which there may be no power.
        with suppress(PowerCut), world.logs() as (_, database):
            attempt = Attempt(world, database, database.block_logs())
            attempt.create("t")
            world.fs.operations_left = operations
            try:
                act(attempt)
            except (PowerCut, PoisonedError):
                yield attempt
            else:
                world.fs.operations_left = None
                assert operations > 0
                return


def remains(disk: MemoryFileSystem) -> Iterator[MemoryFileSystem]:
    yield disk.kill_clone()
    yield disk.crash_clone()
    for seed in SEEDS:
        yield disk.crash_clone(Random(seed), in_order=seed % 2 == 0)


def check_whole(disk: MemoryFileSystem) -> None:
    place = PATH / "data" / DATABASE
    report = verify_database(disk, place, repair=False, quarantine=PATH / "quarantine")
    # A topic that was being created may leave its directory, which the next one takes.
    problems = [finding.problem for finding in report.findings]
    assert [
        problem
        for problem in problems
        if "not a file of the store; it stays as it is" not in problem
    ] == []


@pytest.mark.parametrize("scenario", list(SCENARIOS))
@pytest.mark.timeout(120)
def test_after_a_power_cut_at_any_operation_all_that_was_acknowledged_is_there(
    scenario: str,
) -> None:
    for attempt in crashes(SCENARIOS[scenario]):
        for disk in remains(attempt.world.fs):
            with LogWorld(fs=disk).blocks() as logs:
                created = attempt.topics
                assert logs.topics() in (created, [*created, attempt.creating])
                log = logs.find("t")
                assert log is not None
                found = all_values(log)
                acknowledged, sending = attempt.acknowledged, attempt.sending
                assert found in (acknowledged, acknowledged + sending)
                assert log.bounds() == range(len(found))
                assert append(log, b"next") == len(found)
                assert append_large(log, b"L" * 700) == len(found) + 1
            check_whole(disk)
            with LogWorld(fs=disk.crash_clone()).blocks() as logs:
                log = logs.find("t")
                assert log is not None
                assert all_values(log) == [*found, b"next", b"L" * 700]


def segment_of(world: LogWorld) -> PurePath:
    return PATH / "data" / DATABASE / "0" / "1" / f"{0:020d}.seg"


def damaged(world: LogWorld, position: int, data: bytes) -> MemoryFileSystem:
    disk = world.fs.kill_clone()
    with disk.open(segment_of(world), writable=True) as file:
        file.write_at(position, data)
        file.sync()
    return disk


@pytest.mark.parametrize("damage", [b"\x00", b"\xff"])
def test_a_torn_end_at_any_byte_takes_what_it_hits_and_nothing_else(damage: bytes) -> None:
    """The bytes of the last message, its frame and its place never reached the disk whole."""
    world = LogWorld()
    with world.blocks() as logs:
        log = logs.add("t")
        append(log, b"first")
        synced = world.fs.kill_clone()
        room = taken(log, 640)
        offsets = fill(room, bytes(range(1, 129)) * 5)
        log.append_room(offsets, room).wait()
        before, after = synced.read(segment_of(world)), world.fs.read(segment_of(world))
    changed = [at for at in range(4096, len(before)) if before[at] != after[at]]
    for at in changed[::7]:
        disk = synced.kill_clone()
        with disk.open(segment_of(world), writable=True) as file:
            file.write_at(4096, after[4096:])
            file.write_at(at, damage if after[at : at + 1] != damage else b"\x55")
            file.sync()
        with LogWorld(fs=disk).blocks() as logs:
            log = logs.find("t")  # type: ignore[assignment]
            # A header of a place that nobody reads may change; what is read may not.
            assert all_values(log) in ([b"first"], [b"first", bytes(range(1, 129)) * 5])
            offset = append(log, b"next")
            assert all_values(log)[offset:] == [b"next"]
        check_whole(disk)


def test_a_message_that_was_damaged_behind_a_sync_is_told_and_not_cut_off() -> None:
    world = LogWorld()
    with world.blocks() as logs:
        log = logs.add("t")
        room = taken(log, 800)
        log.append_room(fill(room, b"x" * 800), room).wait()
        append(log, b"later")
        position = room.position
    disk = damaged(world, position + 5, b"y")
    with pytest.raises(CorruptionError, match="a synced frame is damaged"):
        LogWorld(fs=disk).blocks().__enter__()
    place = PATH / "data" / DATABASE
    report = verify_database(disk, place, repair=True, quarantine=PATH / "quarantine")
    assert any(
        "the frame does not match its checksum" in found.problem for found in report.findings
    )
    with LogWorld(fs=disk).blocks() as logs:
        log = logs.find("t")  # type: ignore[assignment]
        assert [(run.first_offset, bytes(run.data)) for run in log.read(0, bytes_max=9)] == [
            (1, b"later")
        ]
        assert append(log, b"goes on") == 2


def test_a_full_disk_refuses_a_message_and_takes_the_next_when_there_is_room() -> None:
    world = LogWorld(fs=MemoryFileSystem(capacity_bytes=1_500_000))
    with world.blocks() as logs:
        log = logs.add("t")
        with pytest.raises(StorageFullError):
            append_large(log, b"x" * 3_000_000)
        with pytest.raises(StorageFullError):
            append(log, b"x" * 3_000_000)
        assert append(log, b"small") == 0
        assert append_large(log, b"L" * 5000) == 1
        assert all_values(log) == [b"small", b"L" * 5000]
    check_whole(world.fs)


def fail_to_add(fault: Fault, before: list[str], operations_left: int) -> MemoryFileSystem:
    """Create topics, then one that fails, then one whose power goes; return the disk."""
    disk = MemoryFileSystem()
    with LogWorld(fs=disk).blocks() as logs:
        append(logs.add("t"), b"kept")
    faulty = FaultyFileSystem(disk)
    world = LogWorld(fs=faulty)  # type: ignore[arg-type]
    with suppress(PowerCut, PoisonedError), world.blocks() as logs:
        for topic in before:
            logs.add(topic)
        faulty.add(fault)
        with suppress(DiskError):
            logs.add("failed")
        faulty.clear()
        faulty.operations_left = operations_left
        logs.add("other")
    return disk


# The first topic of a process replaces the manifest, the second one is a line of the journal.
JOURNAL_FAULTS = [Fault(operation="sync", errno=errno.EIO, path_suffix="added.1")]
MANIFEST_FAULTS = [
    Fault(operation="sync_directory", errno=errno.EIO, path_suffix=DATABASE, nth=nth)
    for nth in range(1, 5)
]


@pytest.mark.parametrize(
    ("fault", "before"),
    [(fault, ["u"]) for fault in JOURNAL_FAULTS] + [(fault, []) for fault in MANIFEST_FAULTS],
    ids=lambda value: f"{value.operation} {value.nth}" if isinstance(value, Fault) else "",
)
def test_a_topic_after_one_that_failed_to_be_created_never_damages_the_store(
    fault: Fault, before: list[str]
) -> None:
    for operations_left in range(30):
        disk = fail_to_add(fault, before, operations_left)
        with LogWorld(fs=disk.kill_clone()).blocks() as logs:
            topics = logs.topics()
            assert topics[: 1 + len(before)] == ["t", *before]
            for topic in topics:
                log = logs.find(topic)
                assert log is not None
                assert all_values(log) == ([b"kept"] if topic == "t" else [])
                append(log, b"next")


def test_a_failed_sync_poisons_the_topic_and_no_other() -> None:
    disk = MemoryFileSystem()
    faulty = FaultyFileSystem(disk)
    world = LogWorld(fs=faulty)  # type: ignore[arg-type]
    with pytest.raises(PoisonedError), world.blocks() as logs:  # noqa: PT012 - closing tells, too
        one, two = logs.add("1"), logs.add("2")
        append(one, b"kept")
        faulty.add(Fault(operation="sync", errno=errno.EIO, path_suffix=f"/0/1/{0:020d}.seg"))
        with pytest.raises(PoisonedError):
            append_large(one, b"lost" * 100)
        assert append(two, b"fine") == 0
        append(one, b"never")
    with LogWorld(fs=disk).blocks() as logs:
        one, two = logs.find("1"), logs.find("2")  # type: ignore[assignment]
        assert all_values(one)[:1] == [b"kept"]
        assert all_values(two) == [b"fine"]


@pytest.mark.timeout(120)
def test_everything_answers_the_same_after_kill_9(tmp_path: Path) -> None:
    with served_by_process(tmp_path / "d", **{"topiclog.segment_bytes": "64 KiB"}) as broker:
        values = [b"%d" % number * 50 for number in range(200)] + [b"B" * 300_000, b"after"]

        def answers() -> list[object]:
            with TopicLogClient(port=log_port(broker)) as client:
                client.subscribe(["t"])
                start = client.position("t")
                client.seek("t", 0)
                found = [message.value for message in iter(client.poll, None)]
                with pytest.raises(NotFoundError):
                    client.committed("nobody", "t")
                return [
                    client.topics(),
                    start,
                    found,
                    [client.message_length("t", offset) for offset in (0, 199, 200, 201, 202)],
                    client.end_offset("t"),
                    client.end_offset("empty"),
                    client.committed("c", "t"),
                ]

        with TopicLogClient(port=log_port(broker)) as client:
            client.create_topic("t")
            client.create_topic("empty")
            for value in values:
                client.send("t", value)
            client.commit("c", "t", 7)
        before = answers()
        assert before[2] == values
        with half_send(log_port(broker), "t", 1_000_000, 400_000):
            broker.kill()
        broker.start()
        assert answers() == before
        with TopicLogClient(port=log_port(broker)) as client:
            with pytest.raises(siltstone.errors.ExistsError):
                client.create_topic("t")
            assert client.send("t", b"next") == len(values)


def test_odd_entries_in_a_topics_directory_are_left_alone_and_told(tmp_path: Path) -> None:
    with served(tmp_path / "d") as port, TopicLogClient(port=port) as client:
        client.create_topic("t")
        client.send("t", b"x" * 100)
    slab = tmp_path / "d" / "data" / DATABASE / "0" / "1"
    odd = make_odd(slab)
    (slab.parent.parent / "no topic").mkdir()
    (slab.parent.parent / "7").write_bytes(b"KASK")
    before = kinds(slab)
    with siltstone.open(tmp_path / "d") as store:
        (report,) = store.database(DATABASE).reports
        assert sorted(report.foreign) == odd
    with served(tmp_path / "d") as port, TopicLogClient(port=port) as client:
        assert client.topics() == ["t"]
        assert client.send("t", b"y") == 1
        client.create_topic("u")
    assert kinds(slab) == before


STRACE = shutil.which("strace")
TRACED = ("read", "pread64", "readv", "preadv", "write", "pwrite64", "writev", "pwritev")


def can_trace() -> bool:
    if STRACE is None:
        return False
    command = [STRACE, "-o", "/dev/null", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_trace(), reason="strace is not to be had here")
@pytest.mark.timeout(120)
def test_no_message_is_read_or_written_by_a_call_on_its_file(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with served_by_process(tmp_path / "d") as broker:
        port, process = log_port(broker), broker.pid
        with TopicLogClient(port=port) as client:
            client.create_topic("t")
            with subprocess.Popen(
                [
                    *(str(STRACE), "-f", "-y", "-s", "0", "-o", str(trace)),
                    *("-e", f"trace={','.join(TRACED)}", "-p", str(process)),
                ],
                stderr=subprocess.PIPE,
                text=True,
            ) as tracer:
                assert tracer.stderr is not None
                assert "attached" in tracer.stderr.readline()
                client.send("t", b"m" * 2_000_000)
                client.subscribe(["t"])
                client.seek("t", 0)
                message = client.poll()
                assert message is not None
                assert len(message.value) == 2_000_000
                tracer.terminate()
                tracer.wait()
    calls = re.findall(r"\d+ +(\w+)\(\d+<[^>]*\.seg>.*= (\d+)", trace.read_text())
    assert calls, "the frame's head at least is written"
    assert max(int(size) for _, size in calls) < 4096
    assert {name for name, _ in calls} == {"pwrite64"}


@pytest.mark.parametrize("page_bytes", [512, 4096])
def test_a_room_taken_behind_holes_that_a_power_cut_left_takes_what_is_put_there(
    page_bytes: int,
) -> None:
    failed: list[tuple[int, str]] = []
    for seed in range(20):
        world = LogWorld(fs=MemoryFileSystem(page_bytes=page_bytes))
        with world.blocks() as logs:
            taken(logs.add("t"), 70_000)
            disk = world.fs.crash_clone(Random(seed))
        with LogWorld(fs=disk).blocks() as logs:
            log = logs.find("t")
            assert log is not None
            try:
                assert append_large(log, b"x" * 70_000) == 0
            except PoisonedError as exc:
                failed.append((seed, str(exc)))
    assert failed == []


@pytest.mark.timeout(120)
def test_a_damaged_manifest_of_topics_leaves_the_broker_running_and_repair_mends_it(
    tmp_path: Path,
) -> None:
    data = tmp_path / "d"
    with served_by_process(data) as broker:
        with TopicLogClient(port=log_port(broker)) as client:
            client.create_topic("a/b")
            client.create_topic("c")
            client.send("c", b"kept")
        broker.stop()
        manifest = data / "data" / DATABASE / "manifest"
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        broker.start()
        told = broker.wait_for("topic_logs_damaged")
        assert told["remedy"] == "stop the broker and run: siltstone verify topics --repair"
        with MqttSocket(broker.port) as peer:
            peer.connect("c1")
            assert peer.publish("t", b"goes on") is Reason.SUCCESS
        broker.stop()
        assert run_command("verify", DATABASE, "--data", str(data)).returncode == 1
        run_command("verify", DATABASE, "--repair", "--data", str(data))
        assert run_command("verify", DATABASE, "--data", str(data)).returncode == 0
        broker.start()
        port = int(broker.wait_for("listening", count=5)["address"].rpartition(":")[2])
        with TopicLogClient(port=port) as client:
            # Nothing names the first topic of a database but the manifest, until it has rows.
            assert client.topics() == ["recovered/0", "c"]
            assert client.send("c", b"next") == 1
        broker.stop()
