from __future__ import annotations

from siltstone.bridge.settings import LinkSettings, LinkTopic
from siltstone.client.settings import ClientSettings
from siltstone.client.target import TcpTarget


def test_a_topic_goes_out_with_qos_1_under_its_own_name_where_nothing_is_said() -> None:
    topic = LinkTopic(pattern="a/#")
    assert (topic.direction, topic.qos, topic.local_prefix, topic.remote_prefix) == (
        "out",
        1,
        "",
        "",
    )


def test_a_full_link_refuses_where_nothing_is_said() -> None:
    settings = LinkSettings(
        name="peer",
        target=TcpTarget("host", 1883),
        tls=None,
        client=ClientSettings(client_id="c"),
        topics=(),
        spool_bytes_max=1,
    )
    assert settings.when_full == "refuse"
