from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import pytest

from siltstone.cluster.certificates import TlsFiles
from siltstone.cluster.nats_process import check_syncs, configuration
from siltstone.cluster.settings import Address, SiteSettings
from siltstone.errors import SiltstoneError, UsageError

SEEDS = tuple(Address("127.0.0.1", port) for port in (7400, 7401, 7402))
SETTINGS = SiteSettings(
    name="plant",
    site="a",
    seeds=SEEDS,
    listen=SEEDS[0],
    secret=b"the secret of this cluster",
    directory=PurePath("/data/cluster"),
)
FILES = TlsFiles(
    certificate=PurePath("/data/cluster/site.pem"),
    key=PurePath("/data/cluster/site.pem"),
    authority=PurePath("/data/cluster/authority.pem"),
)


def test_the_server_syncs_before_it_acknowledges() -> None:
    assert "sync_interval: always" in configuration(SETTINGS, SEEDS[0], FILES)


def test_clients_connect_on_this_machine_only_and_with_a_password() -> None:
    text = configuration(SETTINGS, SEEDS[0], FILES)
    assert 'listen: "127.0.0.1:-1"' in text
    assert SETTINGS.password("client") in text
    assert "the secret of this cluster" not in text


def test_every_route_has_the_password_of_routes() -> None:
    text = configuration(SETTINGS, SEEDS[0], FILES)
    for seed in SEEDS[1:]:
        assert f"nats-route://route:{SETTINGS.password('route')}@{seed}" in text


def test_a_server_has_no_route_to_itself() -> None:
    assert f"@{SEEDS[0]}" not in configuration(SETTINGS, SEEDS[0], FILES)


def test_clients_and_routes_need_a_certificate() -> None:
    text = configuration(SETTINGS, SEEDS[0], FILES)
    wanted = (
        'tls { cert_file: "/data/cluster/site.pem", key_file: "/data/cluster/site.pem", '
        'ca_file: "/data/cluster/authority.pem", verify: true, timeout: 5 }'
    )
    assert text.count(wanted) == 2


def test_a_single_site_has_no_routes() -> None:
    alone = SiteSettings(
        name="plant",
        site="a",
        seeds=SEEDS[:1],
        listen=None,
        secret=b"the secret of this cluster",
        directory=PurePath("/data/cluster"),
    )
    assert "routes" not in configuration(alone, SEEDS[0], FILES)
    assert alone.replicas == 1


def test_passwords_differ_by_purpose_and_cluster() -> None:
    assert SETTINGS.password("client") != SETTINGS.password("route")


@pytest.mark.parametrize(
    "values",
    [{}, {"jetstream": {}}, {"jetstream": {"config": {"sync_always": False}}}],
)
def test_a_server_that_does_not_sync_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(SiltstoneError, match=r"JetStream|sync_interval: always"):
        check_syncs(values)


def test_a_server_that_syncs_is_accepted() -> None:
    values = {"jetstream": {"config": {"sync_always": True}}}
    check_syncs(values)
    assert values == {"jetstream": {"config": {"sync_always": True}}}


@pytest.mark.parametrize("text", ["", "host", "host:", "host:0", "host:65536", ":7400", "host:x"])
def test_an_address_has_a_host_and_a_port(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:7400", "[::1]:7400", "host.example:1"])
def test_an_address_is_read_as_it_is_written(text: str) -> None:
    assert str(Address.parse(text)) == text


def test_a_site_outside_the_seeds_keeps_no_shared_log() -> None:
    elsewhere = replace(SETTINGS, listen=Address("127.0.0.1", 7500))
    assert elsewhere.listen is not None
    assert not elsewhere.keeps_logs
    text = configuration(elsewhere, elsewhere.listen, FILES)
    assert "jetstream" not in text
    assert 'listen: "127.0.0.1:7500"' in text
    assert SETTINGS.keeps_logs
    assert "jetstream {" in configuration(SETTINGS, SEEDS[0], FILES)
