"""The state that a client keeps from one connection to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from siltstone.client.incoming import Incoming
from siltstone.client.outgoing import Outgoing, ServerLimits
from siltstone.client.packet_ids import PacketIds
from siltstone.client.settings import ClientSettings
from siltstone.mqtt.packets import ConnAck, Subscribe, Subscription, Unsubscribe
from siltstone.topic.grammar import TopicFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSubscriptions:
    """The filters to subscribe to, and the filters to unsubscribe from."""

    subscriptions: tuple[Subscription, ...] = ()
    unsubscriptions: tuple[TopicFilter, ...] = ()


NO_SUBSCRIPTIONS: Final = WantedSubscriptions()


class ClientSession:
    """The client side of a session: both directions, subscriptions, and how it ends.

    `finish` ends it after all requests and messages were answered, `leave` ends it at once.
    """

    def __init__(
        self,
        settings: ClientSettings,
        wanted: WantedSubscriptions = NO_SUBSCRIPTIONS,
        *,
        first_packet_id: int = 1,
    ) -> None:
        self.client_id = settings.client_id
        self.wanted = wanted
        self.ids = PacketIds(first_packet_id)
        self.outgoing = Outgoing(settings.version, self.ids, window=settings.window)
        self.incoming = Incoming()
        # Whether the server has accepted the client once, so that it may have kept a session.
        self.met = False
        # Whether the server has granted the subscriptions in this session.
        self.subscribed = False
        self.requests: dict[int, Subscribe | Unsubscribe] = {}
        self.leaving = False
        self._finishing = False

    def begin(self, answer: ConnAck) -> list[Subscribe | Unsubscribe]:
        """Start on a connection that the server accepted; return the requests to send."""
        self.met = True
        self.client_id = answer.properties.assigned_client_identifier or self.client_id
        limits = ServerLimits.told_by(answer.properties)
        self.outgoing.begin(limits, session_present=answer.session_present)
        self.incoming.begin(session_present=answer.session_present)
        self.subscribed = self.subscribed and answer.session_present
        self.ids.free(self.requests)
        self.requests = {}
        for request in self._wanted():
            self.requests[request.packet_id] = request
        return list(self.requests.values())

    def _wanted(self) -> list[Subscribe | Unsubscribe]:
        wanted: list[Subscribe | Unsubscribe] = []
        if self.wanted.unsubscriptions:
            [packet_id] = self.ids.take(1)
            wanted.append(Unsubscribe(packet_id=packet_id, filters=self.wanted.unsubscriptions))
        if self.wanted.subscriptions and not self.subscribed:
            [packet_id] = self.ids.take(1)
            wanted.append(Subscribe(packet_id=packet_id, subscriptions=self.wanted.subscriptions))
        return wanted

    def answered(self, packet_id: int) -> Subscribe | Unsubscribe | None:
        """Return the request with this packet id, and forget it."""
        self.ids.free([packet_id] if packet_id in self.requests else [])
        return self.requests.pop(packet_id, None)

    def finish(self) -> None:
        """End when everything is answered; nothing more will be published."""
        self._finishing = True

    def leave(self) -> None:
        """End at once."""
        self.leaving = True

    @property
    def over(self) -> bool:
        """Whether the session may end now; after a refused message it ends when all is answered."""
        finishing = self._finishing or self.outgoing.refusal is not None
        return self.leaving or (finishing and self.outgoing.idle and not self.requests)
