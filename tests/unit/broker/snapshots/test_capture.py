from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest

from siltstone.broker.snapshots.capture import Capture
from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.mqtt.packets import Disconnect, PubAck, Publish, PubRec, PubRel, Unsubscribe, Will
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PUBACK, PUBREC
from siltstone.session.sending.delivery import NEVER, Delivery, Spilled
from siltstone.session.sending.outbox import Outbox, Ready
from siltstone.snapshot.format.records import (
    Handshakes,
    QueuedMessage,
    Record,
    RetainedMessage,
    SessionState,
    SubscriptionState,
    WaitingWill,
)
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import NOW_US, V3, Wire
from tests.support.memory_core import MemoryCore, finished
from tests.support.receiver import Receiver, make_outbox

KEPT: dict[str, Any] = {"session_expiry_interval": 100}


def queued(payload: bytes, *, qos: int = 1, packet_id: int = 0, expires_us: int = 0) -> Record:
    return QueuedMessage(
        topic=b"a",
        payload=payload,
        flags=qos,
        properties=b"",
        expires_us=expires_us,
        packet_id=packet_id,
    )


def session(client_id: str, *, expiry: int = 100, last_active_us: int = NOW_US) -> SessionState:
    return SessionState(
        client_id=client_id, user="", expiry_seconds=expiry, last_active_us=last_active_us
    )


def subscription(text: str = "a", qos: int = 2) -> SubscriptionState:
    return SubscriptionState(
        filter=text,
        qos=qos,
        no_local=False,
        retain_as_published=False,
        retain_handling=0,
        identifier=0,
    )


def away(core: MemoryCore, client_id: str, text: str = "a") -> None:
    wire = core.connect(client_id, **KEPT)
    wire.subscribe(text)
    wire.send(Disconnect())


def test_a_broker_without_anything_has_no_state() -> None:
    assert MemoryCore().state() == []


def test_retained_messages_are_taken_and_those_of_the_broker_itself_are_not() -> None:
    core = MemoryCore()
    core.broker.retained.put_volatile(b"$SYS/x", b"1")
    core.connect("p").publish("a", "1", retain=True)
    assert core.state() == [
        RetainedMessage(
            topic=b"a",
            payload=b"1",
            flags=4,
            properties=b"",
            stored_us=NOW_US,
            expires_us=0,
            publisher=b"p",
        )
    ]


def test_a_retained_message_that_has_expired_is_left_out() -> None:
    core = MemoryCore()
    core.connect("p").publish("a", "1", retain=True, message_expiry_interval=5)
    core.advance(5)
    assert core.state() == []


def test_a_session_is_taken_with_its_subscriptions_and_options() -> None:
    core = MemoryCore()
    wire = core.connect("c", **KEPT)
    wire.subscribe(
        "$share/g/a/+",
        qos=1,
        identifier=7,
        retain_as_published=True,
        retain_handling=2,
    )
    wire.subscribe("b", no_local=True)
    assert core.state() == [
        session("c"),
        SubscriptionState(
            filter="$share/g/a/+",
            qos=1,
            no_local=False,
            retain_as_published=True,
            retain_handling=2,
            identifier=7,
        ),
        SubscriptionState(
            filter="b",
            qos=2,
            no_local=True,
            retain_as_published=False,
            retain_handling=0,
            identifier=0,
        ),
    ]


def test_sessions_that_end_with_their_connection_are_left_out() -> None:
    core = MemoryCore()
    core.connect("volatile").subscribe("a")
    core.connect("clean", version=V3).subscribe("a")
    assert core.state() == []


def test_a_session_that_is_away_was_active_when_it_was_left() -> None:
    core = MemoryCore()
    away(core, "c")
    core.advance(60)
    assert core.state()[0] == session("c", last_active_us=NOW_US)


def test_a_session_that_is_connected_is_active_now() -> None:
    core = MemoryCore()
    core.connect("c", **KEPT)
    core.advance(60)
    assert core.state() == [session("c", last_active_us=NOW_US + 60_000_000)]


def test_messages_in_flight_come_before_those_that_wait_and_have_their_packet_ids() -> None:
    core = MemoryCore(inflight_max=1)
    wire = core.connect("c", **KEPT)
    wire.subscribe("a")
    publisher = core.connect("p")
    for number in range(1, 4):
        publisher.publish("a", str(number), qos=1, packet_id=number)
    publisher.publish("a", "of no use later")
    core.run()
    assert core.state()[2:] == [
        queued(b"1", packet_id=1),
        queued(b"2"),
        queued(b"3"),
    ]


def test_an_expiry_is_told_by_the_wall_clock() -> None:
    core = MemoryCore()
    away(core, "c")
    core.connect("p").publish("a", "1", qos=1, packet_id=1, message_expiry_interval=30)
    core.advance(10)
    (found,) = core.state()[2:]
    assert isinstance(found, QueuedMessage)
    assert found.expires_us == NOW_US + 30_000_000


def test_half_done_handshakes_of_qos_2_are_taken_without_their_messages() -> None:
    core = MemoryCore()
    wire = core.connect("c", **KEPT)
    wire.subscribe("a")
    core.connect("p").publish("a", "1", qos=2, packet_id=1)
    (sent,) = wire.take()
    assert isinstance(sent, Publish)
    wire.exchange(PubRec(packet_id=sent.packet_id))
    wire.publish("elsewhere", "x", qos=2, packet_id=9)
    assert core.state()[2:] == [Handshakes(received=(9,), released=(sent.packet_id,))]


def test_a_will_that_waits_is_taken_and_that_of_a_connected_client_is_not() -> None:
    core = MemoryCore()
    will = Will(
        topic=b"w",
        payload=b"gone",
        qos=1,
        retain=True,
        properties=Properties(will_delay_interval=20, content_type="t"),
    )
    wire = core.connect("c", will=will, **KEPT)
    assert core.state() == [session("c")]
    wire.drop()
    core.advance(5)
    assert core.state() == [
        session("c"),
        WaitingWill(
            topic=b"w",
            payload=b"gone",
            flags=5,
            properties=b"\x03\x00\x01t",
            due_us=NOW_US + 20_000_000,
        ),
    ]


def test_a_will_on_disk_is_read_when_its_record_is_written() -> None:
    core = MemoryCore()
    away(core, "c")
    file = MemoryFileSystem().create(PurePath("/payloads"))
    will = Will(topic=b"w", payload=b"", properties=Properties(will_delay_interval=20))
    kept = core.broker.registry.sessions["c"]
    core.broker.wills.leave(kept, will, core.broker.shell.now(), Spilled(file, 0, 4))
    capture = Capture(core.broker)
    captured = capture.step(1)
    assert captured is not None
    with pytest.raises(CorruptionError, match="the file ends before the payload does"):
        list(capture.records(captured[0]))
    file.write(b"gone")
    *_, record = capture.records(captured[0])
    assert isinstance(record, WaitingWill)
    assert record.payload == b"gone"


def test_only_one_capture_is_under_way() -> None:
    core = MemoryCore()
    Capture(core.broker)
    with pytest.raises(AssertionError, match="one at a time"):
        Capture(core.broker)


def test_a_piece_is_as_many_sessions_as_asked_for() -> None:
    core = MemoryCore()
    for number in range(5):
        away(core, f"c{number}")
    capture = Capture(core.broker)
    assert pieces(capture, 2) == [2, 2, 1]
    capture.close()


def test_sessions_that_are_no_part_of_it_are_passed_over_a_piece_at_a_time() -> None:
    core = MemoryCore()
    for number in range(4):
        core.connect(f"c{number}")
    away(core, "kept")
    assert pieces(Capture(core.broker), 2) == [0, 0, 1]


def test_a_piece_has_fewer_sessions_where_much_is_in_flight() -> None:
    core = MemoryCore()
    for number in range(3):
        core.connect(f"c{number}", **KEPT).subscribe("a")
    publisher = core.connect("p")
    for number in range(1, 10):
        publisher.publish("a", "x", qos=1, packet_id=number)
    assert pieces(Capture(core.broker), 4) == [2, 1]


def pieces(capture: Capture, count: int) -> list[int]:
    """Return how many sessions each piece has."""
    return [len(taken) for taken in iter(lambda: capture.step(count), None)]


def test_what_comes_later_is_not_part_of_it() -> None:
    """Every way in which a session changes, while its turn has not come."""
    core = MemoryCore()
    publisher = core.connect("p")
    away(core, "offered")
    away(core, "begun anew", "e")
    publisher.publish("a", "1", qos=1, packet_id=1)
    acknowledging = core.connect("acknowledging", **KEPT)
    acknowledging.subscribe("b")
    publisher.publish("b", "2", qos=1, packet_id=2)
    (sent,) = acknowledging.take()
    releasing = core.connect("releasing", **KEPT)
    releasing.publish("x", "3", qos=2, packet_id=3)
    unsubscribing = core.connect("unsubscribing", **KEPT)
    unsubscribing.subscribe("c")
    ending = core.connect("ending", **KEPT)
    before = core.state()
    capture = Capture(core.broker)
    publisher.publish("a", "later", qos=1, packet_id=4, retain=True)
    assert isinstance(sent, Publish)
    acknowledging.exchange(PubAck(packet_id=sent.packet_id))
    releasing.exchange(PubRel(packet_id=3))
    unsubscribing.exchange(Unsubscribe(packet_id=5, filters=(TopicFilter.parse("c"),)))
    unsubscribing.subscribe("d")
    ending.send(Disconnect(properties=Properties(session_expiry_interval=0)))
    core.connect("begun anew", clean_start=True, **KEPT)
    core.connect("new", **KEPT).subscribe("#")
    after = finished(capture)
    assert by_session(after) == by_session(before)
    assert by_session(core.state()) != by_session(before)


def by_session(records: list[Record]) -> dict[str, list[Record]]:
    """Return what belongs to each session, and to none."""
    found: dict[str, list[Record]] = {"": []}
    client_id = ""
    for record in records:
        if isinstance(record, SessionState):
            client_id = record.client_id
            found[client_id] = []
        found[client_id].append(record)
    return found


def test_a_message_that_is_sent_and_released_before_it_is_encoded_is_whole() -> None:
    core = MemoryCore(inflight_max=1)
    wire = core.connect("c", **KEPT)
    wire.subscribe("a")
    publisher = core.connect("p")
    for number in (1, 2):
        publisher.publish("a", str(number), qos=2, packet_id=number)
    capture = Capture(core.broker)
    (captured,) = capture.step(10) or []
    for _ in range(2):
        for packet in wire.take():
            if isinstance(packet, Publish):
                wire.send(PubRec(packet_id=packet.packet_id))
                wire.send(PubRel(packet_id=packet.packet_id))
    assert list(capture.records(captured))[2:] == [
        queued(b"1", qos=2, packet_id=1),
        queued(b"2", qos=2),
    ]
    capture.close()


def offer(outbox: Outbox, *payloads: bytes, qos: int = 1) -> None:
    for payload in payloads:
        outbox.offer(b"t", payload, qos, b"", NEVER)


class TestWatching:
    def test_an_outbox_is_shown_once_before_each_first_change(self) -> None:
        seen: list[tuple[int, int]] = []
        ready = Ready(lambda: None)
        outbox = make_outbox(ready=ready)
        offer(outbox, b"1")

        def watch(shown: Outbox) -> None:
            seen.append((shown.queued, shown.inflight))

        ready.epoch, ready.watch = 1, watch
        offer(outbox, b"of no use when away", qos=0)
        assert seen == []
        offer(outbox, b"2", b"3")
        Receiver(outbox)
        outbox.acknowledge(PUBACK, [1], 0.0)
        assert seen == [(1, 0)]
        ready.epoch = 2
        outbox.acknowledge(PUBACK, [2], 0.0)
        outbox.discard()
        assert seen == [(1, 0), (0, 2)]

    def test_one_that_is_new_is_not_shown(self) -> None:
        ready = Ready(lambda: None)
        seen: list[Outbox] = []
        ready.epoch, ready.watch = 1, seen.append
        offer(make_outbox(ready=ready), b"1")
        assert seen == []

    def test_what_has_waited_before_waits_again_beyond_all_limits(self) -> None:
        outbox = make_outbox(messages_max=2)
        outbox.wait_again(
            [Delivery(b"t", b"%d" % number, 1, b"", NEVER) for number in range(5)], []
        )
        assert Receiver(outbox).payloads() == [b"0", b"1", b"2", b"3", b"4"]

    def test_a_message_that_was_received_stays_as_it_was_for_who_has_seen_it_wait(self) -> None:
        outbox = make_outbox()
        offer(outbox, b"payload", qos=2)
        (waiting,) = outbox.waiting()
        Receiver(outbox)
        outbox.acknowledge(PUBREC, [1], 0.0)
        assert waiting.payload == b"payload"
        assert [(each.payload, each.released) for each in outbox.deliveries()] == [(b"", True)]


def test_what_waits_in_a_share_group_is_taken_with_a_member_that_is_kept() -> None:
    core = MemoryCore(strategy="least-loaded")
    core.connect("brief").subscribe("$share/g/a", qos=2)
    member = core.connect("c", **KEPT)
    member.subscribe("$share/g/a", qos=1, identifier=7)
    publisher = core.connect("p")
    for number in range(1, 12):
        publisher.publish("a", f"{number}", 2, number)
    capture = Capture(core.broker)
    # What changes after the start of the capture is not in it.
    sent = [packet.packet_id for packet in member.take() if isinstance(packet, Publish)]
    member.send(*[PubAck(packet_id=packet_id or 0) for packet_id in sent])
    found = [record for record in finished(capture) if isinstance(record, QueuedMessage)]
    assert [(record.flags, record.properties) for record in found] == [(1, b"\x0b\x07")] * 7
    assert [record.payload for record in found if record.packet_id == 0] == [b"9", b"10", b"11"]


def groups_with_waiting(core: MemoryCore, *counts: int) -> list[Wire]:
    """Let messages wait in groups of one member each; return the connections of the members."""
    members = []
    publisher = core.connect("p")
    for number, count in enumerate(counts):
        members.append(core.connect(f"c{number}", **KEPT))
        members[-1].subscribe(f"$share/g/{number}", qos=1)
        # A member gets four messages at once.
        for packet_id in range(1, 5 + count):
            publisher.publish(f"{number}", f"{packet_id}", 1, packet_id)
    return members


def test_a_piece_has_fewer_groups_where_many_messages_wait() -> None:
    core = MemoryCore(strategy="least-loaded")
    members = groups_with_waiting(core, 3, 600, 3, 3)
    for member in members:
        member.drop()
    before = core.state()
    # The first piece has the last three groups, the second one the first group, the publisher and
    # two members.
    assert pieces(Capture(core.broker), 4) == [0, 2, 2]
    assert len(before) == 4 * 2 + 4 * 4 + 609


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_groups_that_change_before_their_turn_are_taken_as_they_were(steps: int) -> None:
    """Every way in which the waiting messages of a group change."""
    core = MemoryCore(strategy="least-loaded")
    acknowledging, leaving, ending, _, replaced = groups_with_waiting(core, 9, 9, 9, 9, 9)
    other = core.connect("other", **KEPT)
    before = core.state()
    capture = Capture(core.broker)
    found = list(capture.retained_records())
    for _ in range(steps):
        for captured in capture.step(2) or []:
            found.extend(capture.records(captured))
    sent = [packet.packet_id for packet in acknowledging.take() if isinstance(packet, Publish)]
    acknowledging.send(*[PubAck(packet_id=packet_id or 0) for packet_id in sent])
    leaving.exchange(Unsubscribe(packet_id=5, filters=(TopicFilter.parse("$share/g/1"),)))
    ending.send(Disconnect(properties=Properties(session_expiry_interval=0)))
    core.connect("q").publish("3", "later", 1, 1)
    # The messages of this group have a member already, whatever the options of others are.
    replaced.drop()
    other.subscribe("$share/g/4", qos=2, identifier=7)
    other.take()
    found.extend(finished(capture))
    assert by_session(found) == by_session(before)
    assert by_session(core.state()) != by_session(before)


def test_a_session_that_changes_before_its_group_is_copied_has_the_messages_of_the_group() -> None:
    core = MemoryCore(strategy="least-loaded")
    first, second = groups_with_waiting(core, 3, 3)
    before = core.state()
    capture = Capture(core.broker)
    for member in (first, second):
        member.take()
        member.subscribe("x")
    assert by_session(finished(capture, piece=1)) == by_session(before)


def test_groups_are_not_watched_after_a_capture_that_was_given_up() -> None:
    core = MemoryCore(strategy="least-loaded")
    groups_with_waiting(core, 3, 3)
    before = core.state()
    given_up = Capture(core.broker)
    assert given_up.step(1) == []
    given_up.close()
    assert [group.watch for group in core.broker.router.waiting_groups()] == [None, None]
    assert core.state() == before


def test_what_waits_in_a_share_group_survives_a_restart() -> None:
    core = MemoryCore(strategy="least-loaded")
    member = core.connect("c", **KEPT)
    member.subscribe("$share/g/a", qos=1)
    publisher = core.connect("p")
    for number in range(1, 12):
        publisher.publish("a", f"{number}", 1, number)
    member.drop()
    again = core.restarted(strategy="least-loaded").connect("c", clean_start=False, **KEPT)
    found = [packet.payload for packet in again.take() if isinstance(packet, Publish)]
    assert found == [f"{number}".encode() for number in range(1, 12)]
