"""A ledger of what clients published to a cluster, and what was acknowledged to them. It shares no
code with the product.

A client publishes payloads `name-1`, `name-2` and so on with QoS 1, several at a time. When its
connection ends, or nothing is acknowledged for some time, it connects again, and publishes again
what is not acknowledged. The ledger counts the attempts of each payload.

The promises: every payload is stored after it was acknowledged; none is stored more often than it
was attempted; the payloads of a client are first stored in the order in which it published them;
nothing else is stored; and all sites have the same rows.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from siltstone.mqtt.packets import PubAck
from siltstone.mqtt.reason import Reason
from tests.support.mqtt_socket import MqttSocket, publishes
from tests.support.sites import Sites, until

WINDOW = 10
# A client that moves to another site does so when nothing is acknowledged for this long.
_PATIENCE_SECONDS = 4.0
_CONNECT_SECONDS = 3.0
_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 0.1


class Client(threading.Thread):
    """Publishes until it is told to stop, then until everything is acknowledged.

    A client of one site stays there and waits; a client of several goes to another one.
    """

    def __init__(self, sites: Sites, name: str, homes: Sequence[str], seed: int) -> None:
        super().__init__(name=f"client-{name}")
        self._sites = sites
        self.client = name
        self._homes = tuple(homes)
        self._random = random.Random(seed)
        self.attempts: Counter[int] = Counter()
        # What a site refused: its order is not promised.
        self.refused: set[int] = set()
        self.acknowledged = 0
        self._next = 1
        self._ending = threading.Event()
        self._may_run = threading.Event()
        self._may_run.set()
        self._killed = threading.Event()

    def run(self) -> None:
        """Publish over one connection after another."""
        while not self._killed.is_set() and not self._is_done():
            home = self._random.choice(self._homes)
            try:
                with self._sites.inside(home):
                    socket = MqttSocket(self._sites.brokers[home].port)
            except OSError:
                self._killed.wait(_PAUSE_SECONDS)
                continue
            with socket:
                try:
                    self._publish(socket)
                except (OSError, EOFError):
                    self._killed.wait(_PAUSE_SECONDS)

    def pause(self) -> None:
        """Wait until everything is acknowledged, and publish nothing more."""
        self._may_run.clear()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was published is acknowledged."""
        return self.acknowledged == self._next - 1

    def resume(self) -> None:
        """Publish again."""
        self._may_run.set()

    def finish(self) -> None:
        """Publish nothing new; the thread ends when everything is acknowledged."""
        self._ending.set()
        self._may_run.set()

    def kill(self) -> None:
        """End the thread."""
        self._killed.set()
        self._may_run.set()

    def _is_done(self) -> bool:
        return self._ending.is_set() and self.is_idle

    def _publish(self, socket: MqttSocket) -> None:
        socket.socket.settimeout(_CONNECT_SECONDS)
        if socket.connect(self.client).reason is not Reason.SUCCESS:
            raise ConnectionError("the site does not take the client now")
        socket.socket.settimeout(_LOOK_SECONDS)
        while not self._killed.is_set() and not self._is_done():
            if self.is_idle:
                if not self._may_run.is_set():
                    self._killed.wait(_PAUSE_SECONDS)
                    continue
                if not self._ending.is_set():
                    self._next += self._random.randint(1, WINDOW)
            numbers = range(self.acknowledged + 1, self._next)
            self.attempts.update(numbers)
            texts = [payload(self.client, number) for number in numbers]
            socket.send(*publishes(f"plant/{self.client}", texts))
            for packet_id, number in enumerate(numbers, 1):
                answer = self._answer(socket)
                assert answer.packet_id == packet_id
                if answer.reason is not Reason.SUCCESS:
                    # The later ones may be stored before this one is sent again.
                    self.refused.update(numbers)
                    raise ConnectionError(f"a message was refused: {answer.reason}")
                self.acknowledged = number
            self._killed.wait(_PAUSE_SECONDS)

    def _answer(self, socket: MqttSocket) -> PubAck:
        """Return the next acknowledgement. Raises: OSError, EOFError when it is time to go."""
        since = time.monotonic()
        while not self._killed.is_set():
            try:
                packet = socket.receive()
            except TimeoutError:
                if len(self._homes) > 1 and time.monotonic() - since > _PATIENCE_SECONDS:
                    raise
                continue
            if not isinstance(packet, PubAck):
                raise ConnectionError(f"the site sent {packet}")
            return packet
        raise ConnectionError("the test ends")


def payload(client: str, number: int) -> bytes:
    """Return the payload with a number."""
    return b"%s-%d" % (client.encode(), number)


class Ledger:
    """The clients of a cluster: one that stays at each site, and others that move."""

    def __init__(self, sites: Sites, names: Sequence[str], *, seed: int, roaming: int = 2) -> None:
        self._sites = sites
        homes: dict[str, Sequence[str]] = {f"at.{name}": (name,) for name in names}
        homes |= {f"moves.{number}": tuple(names) for number in range(roaming)}
        self.clients = [
            Client(sites, name, at, seed * 100 + number)
            for number, (name, at) in enumerate(homes.items())
        ]

    def start(self) -> None:
        """Start to publish."""
        for client in self.clients:
            client.start()

    @property
    def acknowledged(self) -> Mapping[str, int]:
        """How much was acknowledged to each client."""
        return {client.client: client.acknowledged for client in self.clients}

    def wait_for_progress(self, *names: str) -> None:
        """Wait until more was acknowledged to each of these clients, or to all."""
        before = self.acknowledged

        def all_have_more() -> bool:
            now = self.acknowledged
            return all(now[name] > before[name] for name in names or before)

        until(all_have_more, f"more is acknowledged to {names or 'all'}: {self.acknowledged}")

    def check(self) -> int:
        """Let everything be acknowledged and reach all sites; compare it. Return how many rows."""
        for client in self.clients:
            client.pause()
        until(lambda: all(client.is_idle for client in self.clients), "all is acknowledged")
        rows = self._settled_rows()
        problems = self.problems(rows)
        assert not problems, problems[:20]
        for client in self.clients:
            client.resume()
        return len(rows)

    def end(self) -> None:
        """End all clients."""
        for client in self.clients:
            client.kill()
        for client in self.clients:
            client.join(10.0)

    def _settled_rows(self) -> list[bytes]:
        """Return the rows when all sites have the same, with everything that was acknowledged.

        A call of a client that has gone may still be under way.
        """
        names = tuple(self._sites.brokers)
        found: list[list[bytes]] = []

        def equal() -> bool:
            found[:] = [self._sites.rows(name) for name in names]
            return all(rows == found[0] for rows in found)

        until(equal, "all sites have the same rows")
        return found[0]

    def problems(self, rows: Sequence[bytes]) -> list[str]:
        """Return which promises the rows of a site break."""
        found: list[str] = []
        counts = Counter(rows)
        first: dict[str, list[int]] = {client.client: [] for client in self.clients}
        for row in dict.fromkeys(rows):
            name, _, digits = row.decode().rpartition("-")
            if name not in first:
                found.append(f"{row!r} was never published")
                continue
            first[name].append(int(digits))
        for client in self.clients:
            name = client.client
            stored = set(first[name])
            lost = [n for n in range(1, client.acknowledged + 1) if n not in stored]
            if lost:
                found.append(f"{name}: acknowledged and not stored: {lost[:10]} of {len(lost)}")
            ordered = [number for number in first[name] if number not in client.refused]
            if ordered != sorted(ordered):
                found.append(f"{name}: not in order: {_disorder(ordered)}")
            for number in sorted(stored):
                count = counts[payload(name, number)]
                if count > client.attempts[number]:
                    found.append(
                        f"{name}-{number} is stored {count} times after "
                        f"{client.attempts[number]} attempts"
                    )
        return found


def _disorder(numbers: Sequence[int]) -> list[tuple[int, int]]:
    pairs = itertools.pairwise(numbers)
    return [(before, after) for before, after in pairs if after < before][:5]
