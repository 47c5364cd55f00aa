"""kill -9 of the broker while a share group works: everything is acknowledged by somebody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Thread

from siltstone.mqtt.packets import PubAck, Publish, SubAck, Subscribe, Subscription
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_process import broker_process
from tests.support.mqtt_socket import MqttSocket, connected

MEMBERS = 8
DURABLE = 5
KILLS = 2
WINDOW = 50
ENOUGH = 1000
GROUP = "$share/workers/jobs/#"
WAIT_SECONDS = 40.0


class Work:
    """What was published and stored, and what the members got, in which run."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.run = 0
        self.is_over = False
        self.stored: set[int] = set()
        self.acknowledged: set[int] = set()
        self.got: list[Counter[int]] = [Counter() for _ in range(KILLS + 1)]
        self.joined = 0

    def is_done(self) -> bool:
        return self.stored <= self.acknowledged

    def join(self) -> None:
        """Take note of one more member."""
        with self.changed:
            self.joined += 1
            self.changed.notify_all()

    def take(self, number: int) -> None:
        """Take note of a message that a member has acknowledged."""
        with self.changed:
            self.got[self.run][number] += 1
            self.acknowledged.add(number)
            self.changed.notify_all()

    def wait_for(self, what: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, WAIT_SECONDS), "it takes too long"


def work(port: int, name: str, work: Work, *, durable: bool) -> None:
    """Be a member until the connection ends."""
    try:
        with MqttSocket(port) as client:
            answer = client.connect(
                name,
                clean_start=not durable,
                properties=Properties(
                    session_expiry_interval=3600 if durable else 0, receive_maximum=20
                ),
            )
            if durable and answer.session_present:
                work.join()
            else:
                wanted = Subscription(filter=TopicFilter.parse(GROUP), qos=1)
                client.send(Subscribe(packet_id=1, subscriptions=(wanted,)))
            while True:
                match client.receive():
                    case SubAck(reasons=reasons):
                        assert reasons == (Reason(1),)
                        work.join()
                    case Publish() as message:
                        # 3.8.4: one may come before SUBACK.
                        client.acknowledge(message)
                        work.take(int(message.payload))
                    case _:
                        return
    except (EOFError, OSError):
        pass


def publish(port: int, first: int, work: Work) -> None:
    """Publish running numbers until the connection breaks, or there were enough."""
    sent = done = first
    try:
        with connected(port, "publisher") as client:
            while not work.is_over or done < sent:
                numbers = range(sent, sent if work.is_over else done + WINDOW)
                if numbers:
                    sent = numbers.stop
                    client.send(*map(message_of, numbers))
                client.expect(PubAck)
                done += 1
                with work.changed:
                    work.stored.add(done - 1)
                    work.changed.notify_all()
    except (EOFError, OSError):
        pass


def message_of(number: int) -> Publish:
    return Publish(
        topic=f"jobs/{number % 3}".encode(),
        payload=b"%d" % number,
        qos=1,
        packet_id=1 + number % 60_000,
    )


def test_every_message_is_acknowledged_by_somebody_over_kills_of_the_broker(
    tmp_path: Path,
) -> None:
    done = Work()
    with broker_process(tmp_path / "data", settings={"storage.shards": 2}) as broker:
        for run in range(KILLS + 1):
            done.run, done.joined = run, 0
            members = [
                Thread(
                    target=work,
                    args=(broker.port, f"m{number}", done),
                    kwargs={"durable": number < DURABLE},
                )
                for number in range(MEMBERS)
            ]
            for member in members:
                member.start()
            done.wait_for(lambda: done.joined == MEMBERS)
            # Numbers of its own for each run: what was sent and not acknowledged may be stored.
            publisher = Thread(target=publish, args=(broker.port, run * 1_000_000, done))
            publisher.start()
            done.wait_for(lambda: done.got[done.run].total() >= ENOUGH)
            if run < KILLS:
                broker.kill()
                for thread in (publisher, *members):
                    thread.join()
                broker.start()
            else:
                done.is_over = True
                publisher.join()
                done.wait_for(done.is_done)
                broker.stop()
                for member in members:
                    member.join()
    assert done.stored <= done.acknowledged
    # Within a run nobody left, so nothing was sent twice; what was in flight at a kill may be.
    assert [max(counts.values()) for counts in done.got] == [1] * (KILLS + 1)
