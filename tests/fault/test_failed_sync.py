"""A real broker whose disk fails a sync: it must end by itself, say why, and start again whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.mqtt.reason import Reason
from tests.support.broker_process import BrokerProcess, broker_process, stored
from tests.support.faulty_broker import COMMAND, TRIGGER
from tests.support.mqtt_socket import connected


def fail_syncs(tmp_path: Path) -> None:
    """Let every sync of a segment fail from now on."""
    trigger = tmp_path / TRIGGER
    trigger.touch()
    while trigger.exists():
        pass


@pytest.mark.parametrize("is_told_to_stop", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_after_a_failed_sync_the_broker_ends_with_a_status_that_supervisors_act_on(
    tmp_path: Path, is_told_to_stop: bool, retain: bool
) -> None:
    data = tmp_path / "data"
    broker = BrokerProcess(data, command=COMMAND)
    broker.start()
    try:
        with connected(broker.port, "c") as client:
            assert client.publish("t", b"kept") is Reason.SUCCESS
            fail_syncs(tmp_path)
            assert client.publish("t", b"lost", retain=retain) is Reason.UNSPECIFIED_ERROR
            if is_told_to_stop:
                broker.terminate()
            assert broker.wait_for_status() == 3
    finally:
        if broker.is_running:
            broker.kill()
    (told,) = [event for event in broker.events() if event["level"] == "critical"]
    assert told["event"] == "store_failed"
    assert "errno=5" in told["error"]
    assert broker.mistakes() == []
    with broker_process(data) as again, connected(again.port, "c") as client:
        assert client.publish("t", b"again") is Reason.SUCCESS
    values = [value for _, value in stored(data)]
    # What was refused may be there: it was written, and nothing more is known of it.
    assert [value for value in values if value != b"lost"] == [b"kept", b"again"]
