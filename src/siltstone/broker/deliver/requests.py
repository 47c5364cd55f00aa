"""SUBSCRIBE and UNSUBSCRIBE of one connection.

They are answered when the subscriptions are saved. Then the retained messages follow, as fast as
the client receives them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

from siltstone.broker.access.access import Identity
from siltstone.broker.broker import Broker
from siltstone.broker.deliver.slices import SLICE_LEVELS, slice_end
from siltstone.broker.deliver.subscribe import Replay, SubscriptionRights
from siltstone.guard import contain
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import SubAck, Subscribe, UnsubAck, Unsubscribe
from siltstone.mqtt.reason import ERROR, Reason
from siltstone.mqtt.wire import Version
from siltstone.session.session import Session
from siltstone.session.subscribed import Subscribed


class Requester(Protocol):
    """The client that sends the requests."""

    ended: bool

    def end(self, reason: Reason, text: str = "") -> None:
        """Send the client the reason, and close."""

    def take_more(self) -> None:
        """Continue with the packets after a request that took several turns."""


class Requests:
    """The subscriptions of one client, and the messages that they request."""

    def __init__(
        self,
        broker: Broker,
        owner: Requester,
        session: Session,
        identity: Identity,
        version: Version,
        packet_size_max: int,
        *,
        is_bridge: bool,
    ) -> None:
        self._broker = broker
        self._owner = owner
        self._session = session
        self._identity = identity
        self._version = version
        self._packet_size_max = packet_size_max
        self._is_bridge = is_bridge
        self._replays: deque[Replay] = deque()
        self._is_refilling = False
        # Whether some filters of a packet are not processed yet.
        self.is_busy = False

    def restore(self, then: Callable[[], None]) -> None:
        """Route the subscriptions of earlier connections, then call `then`.

        With very many subscriptions, `then` is called in a later turn.
        """
        durable = self._session.durable
        if durable is None:
            then()
        else:
            self._restore_slice(durable.subscriptions(), then)

    def _restore_slice(self, saved: Iterator[Subscribed], then: Callable[[], None]) -> None:
        if self._owner.ended:
            return
        if self._broker.subscriptions.restore(self._session, saved, self._rights()):
            self._later(partial(self._restore_slice, saved, then))
        else:
            then()

    def _later(self, following: Callable[[], None]) -> None:
        """Continue in a later turn; an error ends the connection, which would wait forever."""
        self._broker.shell.soon(self._contained(following))

    def _contained(self, act: Callable[[], None]) -> Callable[[], None]:
        """Return a callback that ends the connection if `act` raises: no answer would follow."""
        failed = partial(self._owner.end, Reason.UNSPECIFIED_ERROR, "internal error")
        return partial(contain, act, failed)

    def begin(self, *, is_present: bool) -> None:
        """Continue with the messages that an earlier connection left unsent."""
        durables = self._broker.durables
        session = self._session
        if session.durable is not None and durables is not None:
            durables.begin(session)
        if is_present:
            self._replays = self._broker.subscriptions.take_up(session)
            self.refill()

    def end(self) -> None:
        """Leave the unsent retained messages to the next connection."""
        self._broker.subscriptions.put_off(self._session, self._replays)

    def subscribe(self, packet: Subscribe) -> None:
        """Process SUBSCRIBE; `is_busy` is set while it continues in later turns."""
        if self._is_bridge:
            packet = _bridged(packet)
        self._subscribe_slice(packet, 0, [], [])

    def _subscribe_slice(
        self, packet: Subscribe, start: int, reasons: list[Reason], replays: list[Replay]
    ) -> None:
        """Process some filters; other clients are served before the next ones."""
        if self._owner.ended:
            return
        subscriptions = packet.subscriptions
        following = subscriptions[start : start + SLICE_LEVELS]
        stop = start + slice_end([each.filter for each in following])
        granted, more = self._broker.subscriptions.subscribe(
            self._session, replace(packet, subscriptions=subscriptions[start:stop]), self._rights()
        )
        reasons.extend(granted)
        replays.extend(more)
        if stop < len(subscriptions):
            self.is_busy = True
            self._later(partial(self._subscribe_slice, packet, stop, reasons, replays))
            return
        self._keep_subscribed(packet.packet_id, tuple(reasons), replays)
        self._finish_slices()

    def _keep_subscribed(
        self, packet_id: int, reasons: tuple[Reason, ...], replays: list[Replay]
    ) -> None:
        """Answer when the subscriptions are saved."""
        if self._version is not Version.V5:
            # The only failure code of 3.1.1.
            reasons = tuple(
                Reason.UNSPECIFIED_ERROR if reason >= ERROR else reason for reason in reasons
            )
        answer = SubAck(packet_id=packet_id, reasons=reasons)
        durables = self._broker.durables
        if self._session.durable is not None and durables is not None:
            durables.feed(self._session)
            then = self._contained(partial(self._subscribed, answer, replays))
            kept = partial(self._broker.subscriptions.when_kept, self._session, then)
            self._session.durable.save(self._contained(kept))
        else:
            self._subscribed(answer, replays)

    def _subscribed(self, answer: SubAck, replays: list[Replay]) -> None:
        self._answer(answer)
        # A repeated subscription sends its retained messages from the start.
        again = {replay.text for replay in replays}
        self._replays = deque(replay for replay in self._replays if replay.text not in again)
        self._replays.extend(replays)
        self.refill()

    def unsubscribe(self, packet: Unsubscribe) -> None:
        """Process UNSUBSCRIBE; `is_busy` is set while it continues in later turns."""
        self._unsubscribe_slice(packet, 0, [])

    def _unsubscribe_slice(self, packet: Unsubscribe, start: int, reasons: list[Reason]) -> None:
        if self._owner.ended:
            return
        filters = packet.filters
        stop = slice_end(list(filters[start : start + SLICE_LEVELS])) + start
        part = replace(packet, filters=filters[start:stop])
        reasons.extend(self._broker.subscriptions.unsubscribe(self._session, part))
        if stop < len(filters):
            self.is_busy = True
            self._later(partial(self._unsubscribe_slice, packet, stop, reasons))
            return
        self._keep_unsubscribed(UnsubAck(packet_id=packet.packet_id, reasons=tuple(reasons)))
        self._finish_slices()

    def _finish_slices(self) -> None:
        if self.is_busy:
            self.is_busy = False
            self._owner.take_more()

    def _keep_unsubscribed(self, answer: UnsubAck) -> None:
        durables = self._broker.durables
        if self._session.durable is not None and durables is not None:
            durables.narrow(self._session)
            self._session.durable.save(self._contained(partial(self._answer, answer)))
        else:
            self._answer(answer)

    def _answer(self, packet: SubAck | UnsubAck) -> None:
        if self._owner.ended:
            return
        data = encode(self._version, packet)
        if 0 < self._packet_size_max < len(data):
            # [MQTT-3.1.2-24]: the answer must not be sent, and the client would wait for it.
            self._owner.end(Reason.PACKET_TOO_LARGE)
        else:
            self._session.outbox.write(data)

    def refill(self) -> None:
        """Send more: rows of the store, and retained messages."""
        if self._owner.ended:
            return
        durables = self._broker.durables
        if self._session.durable is not None and durables is not None:
            durables.feeding.replenish(self._session.durable)
        for group in self._session.groups.values():
            group.replenish(self._session.outbox)
        router = self._broker.router
        if router.waits:
            router.replenish(self._session.outbox, self._broker.shell.now())
        if not self._replays or self._is_refilling:
            return
        self._is_refilling = self._broker.subscriptions.send_retained(
            self._session, self._replays, self._rights().may_receive
        )
        if self._is_refilling:
            self._later(self._refill_more)

    def _refill_more(self) -> None:
        self._is_refilling = False
        self.refill()

    def _rights(self) -> SubscriptionRights:
        broker = self._broker
        # Methods of the broker, not of Access: the files may be read again.
        return SubscriptionRights(
            may_subscribe=partial(broker.may_subscribe, self._identity),
            may_receive=None if broker.access.open else partial(broker.may_receive, self._identity),
        )


def _bridged(packet: Subscribe) -> Subscribe:
    """Return SUBSCRIBE with the options that a bridge of 3.1.1 cannot encode.

    Without them, messages of a topic that is bridged in both directions would circulate forever,
    and no message would be retained on the other side.
    """
    subscriptions = [
        replace(each, no_local=each.filter.group is None, retain_as_published=True)
        for each in packet.subscriptions
    ]
    return replace(packet, subscriptions=tuple(subscriptions))
