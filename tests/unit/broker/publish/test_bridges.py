from __future__ import annotations

import asyncio
from pathlib import Path, PurePath
from typing import Any

import pytest

from siltstone.bridge.settings import LinkTopic
from siltstone.broker.broker import Broker
from siltstone.broker.publish.bridges import client_context, link_settings, open_links
from siltstone.broker.settings.bridges import BridgeSettings
from siltstone.broker.settings.broker import BrokerSettings
from siltstone.client.settings import WINDOW_CAUTIOUS
from siltstone.client.target import TcpTarget
from siltstone.errors import UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.mqtt.wire import Version
from tests.support.broker_core import Core
from tests.support.certificates import Authority, encrypt_key
from tests.support.links import batch_of

DATA = PurePath("/data")
PATH = "/secret"


def bridge(**values: Any) -> BridgeSettings:
    plain: dict[str, Any] = {
        "name": "cloud",
        "server": "mqtt://peer.example",
        "topics": [{"filter": "a/#", "qos": 2, "local_prefix": "l/", "remote_prefix": "r/"}],
    }
    return BridgeSettings.model_validate(plain | values)


def test_a_bridge_of_the_settings_is_a_link_that_keeps_its_session() -> None:
    made = link_settings(bridge(), MemoryFileSystem())
    assert (made.name, made.target, made.tls) == ("cloud", TcpTarget("peer.example", 1883), None)
    assert made.topics == (
        LinkTopic(pattern="a/#", direction="out", qos=2, local_prefix="l/", remote_prefix="r/"),
    )
    assert (made.client.keep_session, made.client.reconnect) == (True, True)
    assert made.client.client_id.endswith(".cloud")
    assert (made.client.username, made.client.password) == (None, None)


def test_what_the_peer_wants_to_know_is_as_the_settings_say() -> None:
    fs = MemoryFileSystem()
    with fs.create(PurePath(PATH)) as file:
        file.write(b"pass word\r\nsecond line\n")
    made = link_settings(
        bridge(client_id="me", username="u", version="3.1.1", password_file=PATH), fs
    )
    client = made.client
    assert (client.client_id, client.username, client.password) == ("me", "u", b"pass word")
    assert (client.version, client.window) == (Version.V3_1_1, WINDOW_CAUTIOUS)


def test_a_certificate_that_is_none_is_told() -> None:
    with pytest.raises(UsageError, match="bridge 'cloud' cannot use /none"):
        client_context(bridge(server="mqtts://x", authorities="/none"))


def test_the_certificate_of_a_bridge_is_checked_and_no_password_is_asked_for(
    tmp_path: Path,
) -> None:
    files = Authority(tmp_path).client("us")
    encrypt_key(files, b"secret")
    with pytest.raises(UsageError) as refused:
        client_context(bridge(server="mqtts://x", certificate=files.certificate, key=files.key))
    assert str(refused.value) == (
        "bridge 'cloud' cannot use its certificate: the key is encrypted, decrypt its file: "
        f"path={files.key}"
    )


def test_an_open_bridge_takes_what_is_published_from_the_start() -> None:
    core = Core()
    settings = BrokerSettings(bridge=(bridge(),))
    broker = Broker(
        settings,
        database=core.database,
        retained=core.broker.retained,
        access=core.broker.access,
        clock=core.clock,
        shell=core.shell,
    )
    fs = MemoryFileSystem()

    async def main() -> None:
        [link] = open_links(broker, fs, DATA)
        done = asyncio.Event()
        waits = broker.store(batch_of(("l/a/1", b"x", 1)), b"c", lambda part, error: done.set(), [])
        assert waits == 2
        await done.wait()
        link.close()

    asyncio.run(main())
    [name] = [found.name for found in fs.list(DATA / "spool" / "cloud" / "q")]
    assert name.endswith("_1")
