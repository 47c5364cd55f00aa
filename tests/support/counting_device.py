"""A device that publishes numbers from FIRST on, and prints those that are acknowledged.

echo FIRST | python -m tests.support.counting_device PORT
"""

from __future__ import annotations

import sys
from itertools import count

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion


def publish(port: int, first: int) -> None:
    """Publish until the broker ends."""
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    for number in count(first):
        message = client.publish("t/x", b"%d" % number, 1)
        message.wait_for_publish(10)
        if not message.is_published():
            return
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    publish(int(sys.argv[1]), int(sys.argv[2]))
