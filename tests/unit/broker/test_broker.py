from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from typing import Any

import pytest

from siltstone.broker.access.access import Access
from siltstone.broker.access.acl import Acl
from siltstone.broker.deliver.shares import Subscriber
from siltstone.broker.publish.observers import SettlePart
from siltstone.broker.settings.storage import StoreRule
from siltstone.errors import OutcomeUnknownError, PoisonedError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.guard import contain
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Connect, Disconnect, PingReq, PingResp, PubAck, Publish, Will
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.session.archive.records import SavedWill
from siltstone.session.sending.delivery import Budget, Spilled
from siltstone.session.sending.outbox import Outbox
from tests.support.broker_core import V5, Core, FailingTap, message, over_quota
from tests.support.durable_desk import durable_desk, lose


def end_all(core: Core, reason: Reason) -> None:
    for client in list(core.broker.clients.values()):
        client.end(reason)


def batch_of(*rows: tuple[str, str], flags: int = 0) -> PublishBatch:
    batch = PublishBatch()
    for number, (topic, payload) in enumerate(rows, 1):
        batch.topics.append(topic.encode())
        batch.values.append(payload.encode())
        batch.flags.append(flags)
        batch.packet_ids.append(number if flags & 3 else 0)
    return batch


class Heard:
    """Hears what became of the parts of a batch."""

    def __init__(self) -> None:
        self.parts: list[tuple[list[bytes], Exception | None]] = []

    def settle(self, part: PublishBatch, error: Exception | None) -> None:
        self.parts.append((part.topics, error))


class TestFlushing:
    def test_what_a_turn_has_for_a_client_is_one_write(self) -> None:
        core = Core()
        wire = core.connect("c")
        wire.subscribe("a", qos=0)
        writes: list[bytes] = []
        core.broker.registry.sessions["c"].outbox.sink = writes.append
        publisher = core.connect("p")
        for _ in range(3):
            publisher.send(message("a", "x"), message("a", "y"))
        assert writes == []
        core.run()
        assert len(writes) == 1

    def test_what_is_left_of_a_connection_that_has_gone_is_written_to_nobody(self) -> None:
        core = Core()
        wire = core.connect("c", session_expiry_interval=10)
        wire.subscribe("a", qos=1)
        core.connect("p").send(message("a", "x", 1, 1))
        wire.drop()
        core.run()
        again = core.connect("c", clean_start=False)
        assert again.take() == [message("a", "x", 1, 1, dup=True)]

    def test_a_session_that_is_taken_over_within_a_turn_gets_what_it_is_owed_once(self) -> None:
        core = Core()
        first = core.connect("c", session_expiry_interval=10)
        first.subscribe("a", qos=1)
        core.broker.registry.sessions["c"].outbox.write(b"\xd0\x00")
        second = core.wire()
        second.send(Connect(version=V5, client_id="c", clean_start=False))
        core.broker.dispatch(batch_of(("a", "x"), flags=1), None)
        assert second.take()[1:] == [message("a", "x", 1, 1)]
        assert [type(packet).__name__ for packet in first.take()] == ["PingResp", "Disconnect"]

    def test_more_than_a_buffer_is_sent_turn_by_turn(self) -> None:
        core = Core(write_buffer_max=1024)
        wire = core.connect("c")
        wire.subscribe("a", qos=0)
        writes: list[int] = []
        core.broker.registry.sessions["c"].outbox.sink = lambda data: writes.append(len(data))
        core.connect("p").send(*(message("a", "x" * 300),) * 8)
        core.run()
        assert writes == [4 * 307, 4 * 307]

    def test_a_client_that_cannot_be_written_to_keeps_no_other_from_its_messages(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_: bytes) -> None:
            raise RuntimeError("on purpose")

        core = Core()
        wires = [core.connect(name) for name in "abc"]
        for wire in wires:
            wire.subscribe("t", qos=0)
        core.broker.registry.sessions["b"].outbox.sink = fail
        publisher = core.connect("p")
        for payload in "xy":
            publisher.publish("t", payload)
        both = [message("t", "x"), message("t", "y")]
        first, failed, last = [wire.take() for wire in wires]
        assert (first, last) == (both, both)
        # It has missed bytes in the middle of what it is sent.
        assert [type(packet) for packet in failed] == [Disconnect]
        assert [wire.is_closed for wire in wires] == [False, True, False]
        assert [record.message for record in caplog.records] == ["internal_error"]

    def test_a_message_that_cannot_be_loaded_ends_the_connection_and_comes_on_the_next(
        self,
    ) -> None:
        core = Core()
        fields: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100}
        wire = core.connect("c", receive_maximum=1, **fields)
        wire.subscribe("a", qos=1)
        publisher = core.connect("p")
        publisher.send(message("a", "1", 1, 1), message("a", "2", 1, 2))
        [first] = wire.take()
        assert isinstance(first, Publish)
        [waits] = core.broker.registry.sessions["c"].outbox.waiting()
        file = MemoryFileSystem().create(PurePath("/payloads"))
        waits.payload, waits.spilled = b"", Spilled(file, 0, 1)
        contain(lambda: wire.send(PubAck(packet_id=first.packet_id)), wire.drop)
        core.run()
        assert wire.is_closed
        file.write(b"2")
        [again] = core.connect("c", **fields).take()
        assert isinstance(again, Publish)
        assert again.payload == b"2"

    def test_what_cannot_be_taken_in_a_later_turn_ends_the_connection_too(self) -> None:
        core = Core()
        wire = core.connect("c")
        outbox = core.broker.registry.sessions["c"].outbox

        def fail() -> None:
            raise RuntimeError("on purpose")

        outbox.refill = fail
        wire.send(PingReq())
        assert [type(packet) for packet in wire.take()] == [PingResp, Disconnect]
        assert (wire.is_closed, core.broker.clients) == (True, {})


class TestStoring:
    def test_a_batch_is_stored_whole_but_for_what_is_never_stored(self) -> None:
        rules = [
            StoreRule(filter="never", store="never"),
            StoreRule(filter="none", durability="none"),
            StoreRule(filter="written", durability="written"),
        ]
        core = Core(automatic=False, rules=rules)
        heard = Heard()
        names = ("synced", "never", "none", "written", "synced")
        waits = core.broker.store(
            batch_of(*((name, "x") for name in names)), b"p", heard.settle, []
        )
        core.run()
        assert waits == 1
        stored = [b"synced", b"none", b"written", b"synced"]
        assert [(append.durability, append.topics) for append in core.database.pending] == [
            ("synced", stored)
        ]
        error = over_quota()
        core.settle(error)
        assert heard.parts == [(stored, error)]
        assert core.broker.statistics.publishes_refused == 4

    def test_what_nobody_waits_for_is_counted_when_it_is_lost(self) -> None:
        core = Core(automatic=False)
        assert core.broker.store(batch_of(("a", "x"), ("b", "x")), b"p", None, []) == 0
        core.settle(over_quota())
        assert core.broker.statistics.publishes_refused == 2


class TestRetaining:
    def test_only_messages_with_the_flag_are_retained(self) -> None:
        core = Core(automatic=False)
        heard = Heard()
        batch = batch_of(("a", "1"), ("b", "2"), ("c", "3"))
        batch.flags = [4, 0, 5]
        assert core.broker.retain(batch, b"p", heard.settle)[:2] == (1, [])
        assert [append.topics for append in core.retained_log.pending] == [[b"a", b"c"]]
        core.settle()
        assert heard.parts == [([b"a", b"c"], None)]

    def test_without_any_nobody_is_told(self) -> None:
        core = Core()
        assert core.broker.retain(batch_of(("a", "1")), b"p", Heard().settle) == (0, [], [])

    def test_clearing_what_there_is_not_needs_no_outcome(self) -> None:
        core = Core()
        heard = Heard()
        assert core.broker.retain(batch_of(("a", ""), flags=4), b"p", heard.settle)[:2] == (0, [])
        assert heard.parts == []

    def test_what_is_too_much_is_told_by_its_place_in_the_batch(self) -> None:
        core = Core(retained_messages_max=1)
        batch = batch_of(("a", "1"), ("b", "2"), ("c", "3"))
        batch.flags = [0, 4, 4]
        assert core.broker.retain(batch, b"p", None)[:2] == (0, [2])

    def test_what_was_not_stored_is_retained_no_more(self) -> None:
        core = Core(automatic=False)
        core.broker.retain(batch_of(("a", "1"), flags=4), b"p", None)
        assert len(core.broker.retained) == 1
        core.settle(over_quota())
        assert len(core.broker.retained) == 0

    @pytest.mark.parametrize("error", [None, over_quota()], ids=["stored", "not stored"])
    def test_who_retains_too_much_is_not_read_until_the_outcome_of_that_is_known(
        self, error: Exception | None
    ) -> None:
        core = Core(automatic=False, pending_bytes_max=65_536)
        wire = core.connect("p")
        wire.publish("a", "x" * 65_535, retain=True)
        core.database.settle()
        core.run()
        assert (core.broker.bridge.pending_bytes, wire.reads()) == (65_536, False)
        core.retained_log.settle(error)
        core.run()
        assert (core.broker.bridge.pending_bytes, wire.reads()) == (0, True)


class TestWills:
    def left(self, core: Core, **fields: Any) -> None:
        """Let a client go without a word."""
        core.connect("gone", will=Will(topic=b"w", payload=b"x", **fields)).drop()

    def test_a_will_is_stored_under_the_name_of_its_client_with_its_properties(self) -> None:
        core = Core(automatic=False)
        properties = Properties(will_delay_interval=0, content_type="t", message_expiry_interval=10)
        self.left(core, qos=2, retain=True, properties=properties)
        core.run()
        columns = core.database.pending[0].columns
        assert (columns.topics, columns.values) == ([b"w"], [b"x"])
        assert (columns.publisher, columns.flags) == (b"gone", 6)
        assert columns.properties == [b"\x02\x00\x00\x00\x0a\x03\x00\x01t"]
        assert [append.topics for append in core.retained_log.pending] == [[b"w"]]

    def test_a_will_that_cannot_be_retained_is_published_all_the_same(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        core = Core()
        watcher = core.connect("w")
        watcher.subscribe("w", qos=0)
        core.retained_log.refusals.append(PoisonedError("a sync failed"))
        caplog.set_level(logging.WARNING)
        self.left(core, retain=True)
        assert watcher.take() == [message("w", "x")]
        assert core.database.rows == [(b"w", b"x")]
        assert [record.message for record in caplog.records] == ["will_not_retained"]

    def test_a_will_that_expires_is_not_sent_to_who_comes_too_late(self) -> None:
        core = Core()
        watcher = core.connect("w", session_expiry_interval=100)
        watcher.subscribe("w", qos=1)
        watcher.drop()
        self.left(core, qos=1, properties=Properties(message_expiry_interval=10))
        core.advance(10)
        assert core.connect("w", clean_start=False).take() == []

    def test_a_will_reaches_the_session_of_its_own_client(self) -> None:
        core = Core()
        will = Will(topic=b"w", payload=b"x", qos=1)
        wire = core.connect("c", will=will, session_expiry_interval=100)
        wire.subscribe("w", qos=1)
        wire.drop()
        assert core.connect("c", clean_start=False).take() == [message("w", "x", 1, 1)]


class TestCounting:
    def test_totals_go_on_when_sessions_end(self) -> None:
        core = Core(queued_messages_max=1, queue_policy="drop-new")
        kept = core.connect("k", session_expiry_interval=10)
        volatile = core.connect("v")
        for wire in (kept, volatile):
            wire.subscribe("a", qos=1)
        sent_bytes = core.broker.sent_totals()[2]
        publisher = core.connect("p")
        publisher.publish("a", "x", qos=1, packet_id=1)
        kept.drop()
        publisher.send(*(message("a", "x", 1, number) for number in (2, 3)))
        core.run()
        before = core.broker.sent_totals()
        assert before[:2] == (4, 1)
        assert before[2] - sent_bytes == 4 * len(b"\x32\x07\x00\x01a\x00\x01\x00x") + 3 * 4
        volatile.drop()
        core.advance(10)
        assert list(core.broker.registry.sessions) == ["p"]
        assert core.broker.sent_totals() == before

    def test_connections_are_counted_and_the_most_at_once(self) -> None:
        core = Core()
        for _ in range(3):
            core.connect("a").drop()
        core.connect("a")
        core.connect("b")
        counts = core.broker.statistics
        assert (counts.connections, counts.clients_maximum) == (5, 2)


def test_everyone_is_told_of_the_end() -> None:
    core = Core()
    wires = [core.connect(name) for name in "abc"]
    end_all(core, Reason.SERVER_SHUTTING_DOWN)
    goodbye = Disconnect(reason=Reason.SERVER_SHUTTING_DOWN)
    assert [wire.take() for wire in wires] == [[goodbye]] * 3
    assert core.broker.clients == {}


def test_assigned_ids_are_unlike_each_other() -> None:
    broker = Core().broker
    assert len({broker.assigned_id() for _ in range(100)}) == 100


def test_rights_that_were_read_again_hold_for_subscriptions_that_there_are() -> None:
    def reading(topic: str) -> Access:
        lines = [f"topic read {topic}", "topic write #", "topic subscribe #"]
        return Access(None, Acl.parse(lines, PurePath("/acl")), None)

    core = Core(access=reading("a"))
    wire = core.connect("c")
    wire.subscribe("#", qos=0)
    publisher = core.connect("p")
    publisher.send(message("a", "1"), message("b", "2"))
    core.broker.use_access(reading("b"))
    publisher.send(message("a", "3"), message("b", "4"))
    assert [packet.payload for packet in wire.take() if isinstance(packet, Publish)] == [
        b"1",
        b"4",
    ]


def test_a_message_is_dispatched_before_its_outcome_is_known() -> None:
    core = Core(automatic=False)
    reader = core.connect("r")
    reader.subscribe("a", qos=0)
    publisher = core.connect("p")
    assert publisher.publish("a", "x", qos=1, packet_id=1) == []
    assert reader.take() == [message("a", "x")]
    core.settle()
    assert publisher.take() == [PubAck(packet_id=1)]


def test_a_flood_of_packets_from_one_client_is_taken_in_turns() -> None:
    core = Core()
    flood = core.connect("f")
    outbox = core.broker.registry.sessions["f"].outbox
    flood.client.receive(encode(V5, PingReq()) * 600)
    answered = [len(outbox.take())]
    while core.shell.acts:
        core.shell.acts.popleft()()
        answered.append(len(outbox.take()))
    assert [size // 2 for size in answered if size] == [256, 256, 88]
    assert flood.client.ended is False


def test_what_comes_while_a_flood_waits_is_taken_behind_it() -> None:
    core = Core()
    flood = core.connect("f")
    flood.client.receive(encode(V5, PingReq()) * 300)
    flood.client.receive(encode(V5, Disconnect()))
    assert flood.client.ended is False
    core.run()
    assert (flood.client.ended, core.broker.clients) == (True, {})


class SlowTap:
    """A bridge that has what it was given when it is told to."""

    def __init__(self) -> None:
        self.settles: list[Callable[[], None]] = []

    def refused(self, _batch: PublishBatch, _publisher: bytes) -> list[int]:
        return []

    def take(self, batch: PublishBatch, _publisher: bytes, settle: SettlePart | None) -> int:
        if settle is None:
            return 0
        self.settles.append(partial(settle, batch, None))
        return 1


class TestLastWill:
    def test_its_outcome_is_heard_once_when_a_bridge_and_the_store_have_it(self) -> None:
        core = Core(automatic=False)
        tap = SlowTap()
        core.broker.taps.add(tap)
        heard: list[Exception | None] = []
        will = SavedWill(topic=b"w", payload=b"x", qos=1)
        core.broker.publish_saved_will("c", will, None, heard.append)
        core.settle()
        assert heard == []
        tap.settles.pop()()
        assert heard == [None]

    def test_it_is_heard_of_whatever_goes_wrong(self) -> None:
        core = Core()
        core.broker.taps.add(FailingTap())
        heard: list[Exception | None] = []
        will = SavedWill(topic=b"w", payload=b"x", qos=1)
        with pytest.raises(RuntimeError, match="on purpose"):
            core.broker.publish_saved_will("c", will, None, heard.append)
        assert [type(error) for error in heard] == [OutcomeUnknownError]

    def test_one_that_fails_does_not_lock_its_client_out(self) -> None:
        with durable_desk() as desk:
            wire = desk.come(will=Will(topic=b"w", payload=b"x", qos=1))
            desk.core.broker.taps.add(FailingTap())
            lose(wire)
            assert (desk.core.broker.is_settled, desk.core.broker.clients) == (True, {})
            assert desk.come().accepted is not None


def test_the_loop_waits_for_the_disk_beside_durable_sessions_but_not_beside_live_ones() -> None:
    broker = Core().broker
    outbox = Outbox(broker.ready, Budget(1), 1, 1, False)  # noqa: FBT003 - compiled
    subscriber = Subscriber(outbox, 1, False, False, b"", None)  # noqa: FBT003
    levels = (b"a",)
    assert broker._may_wait()  # noqa: SLF001
    # A durable session gets stored messages from the store, after their sync.
    broker.unstored.subscribe(levels, subscriber)
    assert broker._may_wait()  # noqa: SLF001
    broker.router.subscribe(levels, subscriber)
    assert not broker._may_wait()  # noqa: SLF001
