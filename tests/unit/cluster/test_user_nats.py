from __future__ import annotations

from typing import Any

import pytest

from siltstone.cluster.nats_process import PAYLOAD_MAX
from siltstone.cluster.shared_log import STREAM_BYTES
from siltstone.cluster.user_nats import check_limits, check_servers
from siltstone.errors import UsageError

PAGES = [f"http://nats-{number}:8222" for number in range(3)]


def good(number: int) -> dict[str, Any]:
    return {
        "server_id": f"N{number}",
        "version": "2.15.1",
        "cluster": {"name": "plant"},
        "jetstream": {"config": {"sync_always": True}},
        "max_payload": PAYLOAD_MAX,
    }


def test_servers_that_lose_nothing_are_accepted() -> None:
    known = {page: good(number) for number, page in enumerate(PAGES)}
    check_servers(known)
    assert known == {page: good(number) for number, page in enumerate(PAGES)}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": "2.9.10"}, r"http://nats-2:8222: nats-server 2.9.10 is too old: 2.12 or"),
        ({"version": "unknown"}, "too old"),
        ({"jetstream": {}}, "has no JetStream"),
        ({"jetstream": {"config": {"sync_always": False}}}, "sync_interval: always"),
        ({"max_payload": 1 << 20}, "max_payload is 1048576, and must be at least"),
        ({"server_id": "N0"}, "one server twice: http://nats-0:8222 and http://nats-2:8222"),
        ({"cluster": {"name": "other"}}, "several: plant at .* other at http://nats-2:8222"),
        ({"cluster": {}}, "several: plant at .* none at http://nats-2:8222"),
    ],
)
def test_a_server_that_could_lose_data_is_refused(changes: dict[str, Any], text: str) -> None:
    known = {page: good(number) for number, page in enumerate(PAGES)}
    known[PAGES[2]].update(changes)
    with pytest.raises(UsageError, match=text):
        check_servers(known)


@pytest.mark.parametrize("answer", [{"hello": "world"}, {"version": "2.15.1", "jetstream": True}])
def test_a_page_of_another_server_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="http://nats-0:8222 is not the monitoring page"):
        check_servers({PAGES[0]: answer})


def test_an_account_without_limits_or_with_enough_is_accepted() -> None:
    for storage, streams in ((-1, -1), (STREAM_BYTES, 2)):
        limits = {"max_storage": storage, "max_streams": streams}
        check_limits(limits)
        assert limits == {"max_storage": storage, "max_streams": streams}


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_storage": STREAM_BYTES - 1, "max_streams": -1}, "max_storage"),
        ({"max_storage": -1, "max_streams": 1}, "max_streams is 1"),
    ],
)
def test_a_small_account_is_refused(limits: dict[str, int], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check_limits(limits)
