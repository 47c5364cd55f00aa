from __future__ import annotations

from collections.abc import Callable

from siltstone.bridge.inbound import Inbound
from siltstone.bridge.mapping import inward
from siltstone.bridge.settings import LinkTopic
from siltstone.client.incoming import Incoming
from siltstone.errors import OverloadedError
from siltstone.mqtt.publish import PUBACK, PUBREC, PublishBatch, encode_acks
from tests.support.links import batch_of, rows

TOPICS = (LinkTopic(pattern="cmd/#", direction="in", local_prefix="plant/", qos=2),)


class Desk:
    """An Inbound over a store that answers when told to."""

    def __init__(self) -> None:
        self.incoming = Incoming()
        self.published: list[PublishBatch] = []
        self.outcomes: list[Callable[[Exception | None], None]] = []
        self.calls: list[str] = []
        self.inbound = Inbound(
            self.incoming,
            inward(TOPICS),
            name="peer",
            publish=self._publish,
            answer=lambda: self.calls.append("answer"),
            reconnect=lambda: self.calls.append("reconnect"),
        )

    def _publish(self, batch: PublishBatch, done: Callable[[Exception | None], None]) -> None:
        self.published.append(batch)
        self.outcomes.append(done)

    def deliver(self, *messages: tuple[str, bytes, int]) -> int:
        return self.inbound.deliver(self.incoming.fresh(batch_of(*messages)))


def test_a_message_is_acknowledged_only_once_it_is_stored_here() -> None:
    desk = Desk()
    assert desk.deliver(("cmd/1", b"x", 9), ("cmd/2", b"y", 6)) == 0
    assert [rows(batch) for batch in desk.published] == [
        [(b"plant/cmd/1", b"x", 1), (b"plant/cmd/2", b"y", 6)]
    ]
    assert desk.published[0].packet_ids == [0, 0]
    assert (desk.incoming.take(), desk.calls) == (b"", [])
    desk.outcomes[0](None)
    assert desk.incoming.take() == encode_acks(PUBACK, [1], 0) + encode_acks(PUBREC, [2], 0)
    assert desk.calls == ["answer"]


def test_acknowledgements_keep_the_order_of_arrival() -> None:
    desk = Desk()
    desk.deliver(("cmd/1", b"x", 1))
    desk.deliver(("cmd/2", b"y", 0), ("cmd/3", b"z", 1))
    desk.outcomes[1](None)
    assert desk.incoming.take() == b""
    desk.outcomes[0](None)
    assert desk.incoming.take() == encode_acks(PUBACK, [1, 2], 0)


def test_what_has_no_place_here_is_acknowledged_and_forgotten() -> None:
    desk = Desk()
    desk.deliver(("stale", b"x", 1))
    assert (desk.published, desk.incoming.take()) == ([], encode_acks(PUBACK, [1], 0))


def test_what_cannot_be_stored_is_asked_for_again() -> None:
    desk = Desk()
    desk.deliver(("cmd/1", b"x", 2))
    desk.outcomes[0](OverloadedError("full"))
    assert (desk.calls, desk.incoming.take()) == (["reconnect"], b"")
    desk.incoming.begin(session_present=True)
    desk.deliver(("cmd/1", b"x", 10))
    desk.outcomes[1](None)
    assert desk.incoming.take() == encode_acks(PUBREC, [1], 0)
