from __future__ import annotations

from tests.support.broker_core import Core, message


class TestPace:
    def test_who_publishes_faster_than_allowed_is_read_more_slowly(self) -> None:
        core = Core(publish_rate_max=10)
        client = core.connect("c")
        client.send(*(message("a"),) * 10)
        assert client.reads()
        client.send(*(message("a"),) * 5)
        assert not client.reads()
        client.send(message("a", "late"))
        core.advance(0.49)
        assert (client.reads(), len(core.database.rows)) == (False, 15)
        core.advance(0.12)
        assert (client.reads(), core.database.rows[-1]) == (True, (b"a", b"late"))

    def test_no_socket_is_read_while_too_much_waits_for_the_disk(self) -> None:
        core = Core(automatic=False, pending_bytes_max=65_536)
        client, other = core.connect("c"), core.connect("d")
        client.publish("a", "x" * 70_000)
        assert (client.reads(), other.reads()) == (False, True)
        other.publish("a", "y")
        assert not other.reads()
        core.settle()
        assert (client.reads(), other.reads()) == (True, True)

    def test_who_waits_for_two_things_is_read_when_both_have_come(self) -> None:
        core = Core(automatic=False, pending_bytes_max=65_536, publish_rate_max=1)
        client = core.connect("c")
        client.send(message("a", "x" * 70_000), message("a"))
        core.run()
        core.settle()
        assert not client.reads()
        core.advance(1.0)
        assert client.reads()

    def bulk(self, core: Core, count: int = 256) -> bool:
        """Publish so many messages at once; tell whether the publisher is read."""
        client = core.connect("c")
        client.send(*(message("a", f"{number}") for number in range(count)))
        return client.reads()

    def behind(self) -> Core:
        """Make a broker with a subscriber that does not read."""
        core = Core(queued_messages_max=200)
        reader = core.connect("r")
        reader.subscribe("a", qos=1)
        reader.client.pause_writing()
        return core

    def test_bulk_waits_for_a_subscriber_that_is_far_behind(self) -> None:
        assert not self.bulk(self.behind())

    def test_a_few_messages_wait_for_nobody(self) -> None:
        assert self.bulk(self.behind(), 255)

    def test_bulk_waits_no_longer_than_a_moment(self) -> None:
        core = self.behind()
        client = core.connect("c")
        client.send(*(message("a"),) * 256)
        core.advance(0.09)
        assert not client.reads()
        core.advance(0.02)
        assert client.reads()

    def test_bulk_goes_on_when_the_subscriber_has_caught_up(self) -> None:
        core = Core(queued_messages_max=200)
        reader = core.connect("r")
        reader.subscribe("a", qos=0)
        reader.client.pause_writing()
        client = core.connect("c")
        client.send(*(message("a"),) * 256)
        assert not client.reads()
        reader.client.resume_writing()
        core.run()
        assert client.reads()
        # The moment passes, and nobody says go on a second time.
        core.advance(1.0)
        client.client.stop()
        assert not client.reads()

    def test_nobody_waits_for_a_subscriber_that_has_long_stopped_reading(self) -> None:
        core = self.behind()
        core.advance(1.1)
        assert self.bulk(core)

    def test_nobody_waits_for_a_subscriber_that_is_away(self) -> None:
        core = Core(queued_messages_max=200)
        reader = core.connect("r", session_expiry_interval=100)
        reader.subscribe("a", qos=1)
        reader.drop()
        client = core.connect("c")
        client.send(*(message("a", "x", 1, number) for number in range(1, 257)))
        assert client.reads()
