"""A stock client of MQTT 3.1.1 whose publishes are refused: it must not connect again and again."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker_process import broker_process, stored
from tests.support.watcher import watching


def test_a_stock_client_goes_on_behind_a_message_that_it_may_not_publish(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite plant/#\n")
    with broker_process(tmp_path / "data", settings={"access.acl_file": str(acl)}) as broker:
        with watching(broker.port, "plant/#") as client:
            for number in range(20):
                client.publish("forbidden", b"%d" % number, qos=1 + number % 2)
            client.publish("plant/1", b"end")
            client.wait_for(lambda payloads: payloads == [b"end"])
        assert len(broker.events("client_connected")) == 1
        broker.stop()
        assert [event["text"] for event in broker.events("publish_refused")] == [
            "messages since the last line: 1",
            "messages since the last line: 19",
        ]
    assert stored(tmp_path / "data") == [("plant/1", b"end")]
