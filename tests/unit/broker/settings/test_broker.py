from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from siltstone.broker.settings.access import AccessSettings
from siltstone.broker.settings.broker import (
    GIB,
    KIB,
    MIB,
    BrokerSettings,
    FlightSettings,
    Limits,
    ListenerSettings,
    LogSettings,
)
from siltstone.broker.settings.storage import ShareSettings, Storage, StoreRule
from siltstone.errors import UsageError
from siltstone.store.slab.settings import DatabaseSettings

MODELS: tuple[type[BaseModel], ...] = (
    BrokerSettings,
    Limits,
    StoreRule,
    Storage,
    ListenerSettings,
    AccessSettings,
    ShareSettings,
    LogSettings,
)


def complaints(model: type[BaseModel], values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the key and the sentence of everything that is wrong with the values."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    return [
        (
            ".".join(map(str, (*error["loc"], *error.get("ctx", {}).get("key", ())))),
            error["msg"],
        )
        for error in caught.value.errors()
    ]


def test_the_defaults_are_one_listener_on_loopback() -> None:
    settings = BrokerSettings()
    assert settings.listeners == (ListenerSettings(kind="tcp", host="127.0.0.1", port=1883),)
    assert settings == BrokerSettings(
        data="siltstone-data",
        sys_interval=10.0,
        drain_timeout=2.0,
        limits=Limits(),
        storage=Storage(),
        access=AccessSettings(),
        share=ShareSettings(),
        log=LogSettings(),
    )


def test_the_limits_by_default() -> None:
    assert Limits().model_dump() == {
        "connections_max": 100_000,
        "connections_per_address_max": 0,
        "packet_size_max": 16 * MIB,
        "control_size_max": 256 * 1024,
        "filters_max": 1000,
        "user_properties_max": 1000,
        "properties_size_max": 256 * 1024,
        "receive_max": 1024,
        "topic_alias_max": 10,
        "topic_alias_out_max": 100,
        "inflight_max": 1024,
        "queued_messages_max": 100_000,
        "queued_bytes_max": 64 * MIB,
        "queued_bytes_total_max": GIB,
        "queue_policy": "drop-old",
        "refused_publish": "acknowledge",
        "refusal_delay": 5.0,
        "write_buffer_max": MIB,
        "publish_rate_max": 0,
        "subscriptions_max": 10_000,
        "subscriptions_total_max": 5_000_000,
        "topic_levels_max": 128,
        "client_id_size_max": 1024,
        "connect_timeout": 10.0,
        "keep_alive_max": 65_535,
        "session_expiry_max": 604_800.0,
        "sessions_max": 1_000_000,
        "retained_messages_max": 1_000_000,
        "retained_bytes_max": GIB,
        "partial_bytes_max": 256 * MIB,
        "pending_bytes_max": 32 * MIB,
    }


@pytest.mark.parametrize("model", MODELS)
def test_every_setting_is_described_in_a_sentence(model: type[BaseModel]) -> None:
    described = {name: field.description or "" for name, field in model.model_fields.items()}
    assert [name for name, text in described.items() if not text.endswith((".", "`."))] == []


LOCAL_TLS = {"kind": "tls", "certificate": "c", "key": "k"}


@pytest.mark.parametrize(
    ("listener", "users", "expected"),
    [
        ({}, {}, True),
        ({}, {"password_file": "p"}, True),
        (LOCAL_TLS, {}, True),
        (LOCAL_TLS, {"password_file": "p"}, False),
        (LOCAL_TLS, {"hook": "a:b"}, False),
        (LOCAL_TLS | {"allow_anonymous": True}, {"password_file": "p"}, True),
    ],
)
def test_on_loopback_clients_without_a_name_come_in_but_not_by_tls_where_there_are_users(
    listener: dict[str, Any], users: dict[str, Any], expected: bool
) -> None:
    settings = BrokerSettings.model_validate({"listeners": [listener], "access": users})
    assert settings.lets_in_anonymous(settings.listeners[0]) is expected


@pytest.mark.parametrize("model", MODELS)
def test_settings_are_frozen_and_take_no_unknown_key(model: type[BaseModel]) -> None:
    settings = model.model_validate({"filter": "a"} if model is StoreRule else {})
    name = next(iter(model.model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(settings, name, None)
    given = settings.model_dump() | {"colour": "red"}
    assert complaints(model, given) == [("colour", "Extra inputs are not permitted")]


def test_a_refused_value_is_not_part_of_the_error() -> None:
    with pytest.raises(ValidationError) as caught:
        Limits.model_validate({"receive_max": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_new_database_has_the_defaults_of_the_store() -> None:
    assert Storage().database_settings() == DatabaseSettings()


def test_the_settings_of_a_new_database_are_handed_on() -> None:
    storage = Storage(
        database="other",
        rules=(StoreRule(filter="#"),),
        shards=2,
        thresholds=(5, 0),
        segment_bytes=64 * KIB,
        compression="zstd",
        flush_interval=0.5,
        idle_flush_interval=0.25,
        rotate_seconds=60.0,
        rotate_bytes=1,
        retain_seconds=120.0,
        retain_bytes=2,
        quota_bytes=3,
    )
    assert storage.database_settings() == DatabaseSettings(
        shards=2,
        thresholds=(5, 0),
        segment_bytes=64 * KIB,
        compression="zstd",
        flush_interval=0.5,
        idle_flush_interval=0.25,
        rotate_seconds=60.0,
        rotate_bytes=1,
        retain_seconds=120.0,
        retain_bytes=2,
        quota_bytes=3,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shards", 0),
        ("shards", 16_385),
        ("thresholds", ()),
        ("thresholds", (-2,)),
        ("segment_bytes", 64 * KIB - 4096),
        ("segment_bytes", 64 * KIB + 1),
        ("segment_bytes", (1 << 40) + 4096),
        ("compression", "gzip"),
        ("flush_interval", -0.1),
        ("flush_interval", 3600.5),
        ("idle_flush_interval", 3600.5),
        ("rotate_seconds", 0.0),
        ("rotate_bytes", 0),
        ("retain_seconds", 0.0),
        ("retain_bytes", 0),
        ("quota_bytes", 0),
    ],
)
def test_what_the_store_refuses_is_refused_here_already(key: str, value: Any) -> None:
    with pytest.raises(UsageError):
        DatabaseSettings.from_json({key: value})
    with pytest.raises(ValidationError):
        Storage.model_validate({key: value})


TLS = {"kind": "tls", "certificate": "chain.pem", "key": "key.pem"}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            {"kind": "unix"},
            ("path", "is missing: a unix listener needs the path of its socket file"),
        ),
        (
            {"kind": "unix", "path": "s", "port": 1884},
            (
                "port",
                (
                    "is only for listeners of kind tcp and tls and ws and wss, and this one has "
                    "kind unix"
                ),
            ),
        ),
        ({"kind": "ws", "path": "mqtt"}, ("path", "must begin with /: it is the path of a URL")),
        (
            {"kind": "tcp", "path": "/mqtt"},
            (
                "path",
                ("is only for listeners of kind ws and wss and unix, and this one has kind tcp"),
            ),
        ),
        (
            {"kind": "tcp", "mode": 0o600},
            ("mode", ("is only for listeners of kind unix, and this one has kind tcp")),
        ),
        (
            {"kind": "tcp", "certificate": "chain.pem"},
            ("certificate", "is only for listeners of kind tls and wss, and this one has kind tcp"),
        ),
        (
            {"kind": "tls", "key": "key.pem"},
            ("certificate", "is missing: tls needs a certificate and its key"),
        ),
        (
            {"kind": "wss", "certificate": "chain.pem"},
            ("key", "is missing: wss needs a certificate and its key"),
        ),
        (
            TLS | {"client_certificate": "optional"},
            ("client_ca", "is missing: client certificates need the authority that signs them"),
        ),
    ],
)
def test_a_listener_has_what_its_kind_needs_and_nothing_else(
    values: dict[str, Any], complaint: tuple[str, str]
) -> None:
    assert complaints(ListenerSettings, values) == [complaint]


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({}, "tcp://127.0.0.1:1883"),
        ({"kind": "ws", "host": "::1", "port": 8083}, "ws://[::1]:8083/mqtt"),
        ({"kind": "ws", "path": "/other"}, "ws://127.0.0.1:1883/other"),
        (TLS | {"host": "broker.example", "port": 8883}, "tls://broker.example:8883"),
        ({"kind": "unix", "path": "/run/s.sock"}, "unix:///run/s.sock"),
    ],
)
def test_a_listener_is_named_by_its_address(values: dict[str, Any], address: str) -> None:
    assert ListenerSettings.model_validate(values).address == address


@pytest.mark.parametrize(
    ("values", "anonymous"),
    [
        ({"host": "127.0.0.1"}, True),
        ({"host": "127.8.9.10"}, True),
        ({"host": "::1"}, True),
        ({"host": "localhost"}, True),
        ({"kind": "unix", "path": "s"}, True),
        ({"host": "0.0.0.0"}, False),  # noqa: S104 - nothing is bound
        ({"host": "::"}, False),
        ({"host": ""}, False),
        ({"host": "192.168.0.1"}, False),
        ({"host": "localhost.example"}, False),
        ({"host": "192.168.0.1", "allow_anonymous": True}, True),
        ({"host": "127.0.0.1", "allow_anonymous": False}, False),
    ],
)
def test_clients_without_a_name_come_by_loopback_unless_it_is_said(
    values: dict[str, Any], anonymous: bool
) -> None:
    assert ListenerSettings.model_validate(values).anonymous_allowed is anonymous


OPEN = {"allow_anonymous": True}


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        ({}, {"kind": "ws"}, True),
        ({}, {"port": 1884}, False),
        ({}, {"host": "::1"}, False),
        ({}, OPEN | {"host": "0.0.0.0"}, True),  # noqa: S104 - nothing is bound
        ({"port": 0}, {"port": 0}, False),
        ({"kind": "unix", "path": "a"}, {"kind": "unix", "path": "a"}, True),
        ({"kind": "unix", "path": "a"}, {"kind": "unix", "path": "b"}, False),
        ({"kind": "unix", "path": "a"}, {}, False),
    ],
)
def test_two_listeners_do_not_share_an_address(
    one: dict[str, Any], other: dict[str, Any], collide: bool
) -> None:
    first, second = map(ListenerSettings.model_validate, (one, other))
    assert (first.collides(second), second.collides(first)) == (collide, collide)
    if collide:
        assert complaints(BrokerSettings, {"listeners": [one, other]}) == [
            (
                "listeners.1",
                (f"has the address {second.address}, which conflicts with {first.address}"),
            )
        ]


def test_there_is_a_listener() -> None:
    assert complaints(BrokerSettings, {"listeners": []}) == [
        ("listeners", "is empty: a broker needs at least one listener")
    ]


def test_a_listener_that_lets_nobody_in_is_refused() -> None:
    nobody = (
        "accepts no client at tcp://192.168.0.1:1883: set access.password_file or access.hook, or "
        "allow clients without a login with allow_anonymous = true"
    )
    public = {"host": "192.168.0.1"}
    assert complaints(BrokerSettings, {"listeners": [{}, public | {"port": 1883}]}) == [
        ("listeners.1", nobody)
    ]
    named = TLS | {"host": "192.168.0.1", "client_certificate": "required", "client_ca": "ca.pem"}
    for values in (
        {"listeners": [public | OPEN]},
        {"listeners": [public], "access": {"password_file": "users"}},
        {"listeners": [public], "access": {"hook": "our.hooks:decide"}},
        {"listeners": [named]},
    ):
        BrokerSettings.model_validate(values)
    unnamed = named | {"user_from_certificate": False}
    assert [key for key, _ in complaints(BrokerSettings, {"listeners": [unnamed]})] == [
        "listeners.0"
    ]
    acl_alone = {"listeners": [public], "access": {"acl_file": "acl"}}
    assert complaints(BrokerSettings, acl_alone) == [("listeners.0", nobody)]


@pytest.mark.parametrize(
    ("values", "address", "anonymous"),
    [
        ({}, "grpc+tcp://127.0.0.1:8815", True),
        ({"host": "::", "port": 1}, "grpc+tcp://[::]:1", False),
        ({"host": "::1", "certificate": "c", "key": "k"}, "grpc+tls://[::1]:8815", True),
        ({"allow_anonymous": False}, "grpc+tcp://127.0.0.1:8815", False),
    ],
)
def test_flight_is_named_by_its_address(
    values: dict[str, Any], address: str, anonymous: bool
) -> None:
    settings = FlightSettings.model_validate(values)
    assert (settings.enabled, settings.address, settings.anonymous_allowed) == (
        False,
        address,
        anonymous,
    )


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"certificate": "c"}, ("key", "is missing: TLS needs a certificate and its key")),
        ({"key": "k"}, ("certificate", "is missing: TLS needs a certificate and its key")),
        ({"client_ca": "c"}, ("client_ca", "is only for TLS: set certificate and key too")),
    ],
)
def test_flight_has_what_tls_needs(values: dict[str, Any], complaint: tuple[str, str]) -> None:
    assert complaints(FlightSettings, values) == [complaint]


def test_flight_needs_the_store_and_somebody_who_may_come_in() -> None:
    in_memory = {"flight": {"enabled": True}, "persistence": "snapshot"}
    assert complaints(BrokerSettings, in_memory) == [
        ("flight.enabled", 'needs persistence = "store"')
    ]
    public = {"flight": {"enabled": True, "host": "192.168.0.1"}}
    assert [key for key, _ in complaints(BrokerSettings, public)] == ["flight"]
    for values in (
        {"flight": {"host": "192.168.0.1"}},
        {"flight": {"enabled": True, "host": "192.168.0.1", "allow_anonymous": True}},
        public | {"access": {"password_file": "users"}},
    ):
        BrokerSettings.model_validate(values)


@pytest.mark.parametrize(
    ("flight", "users", "expected"),
    [
        ({}, {"password_file": "p"}, True),
        ({"certificate": "c", "key": "k"}, {}, True),
        ({"certificate": "c", "key": "k"}, {"password_file": "p"}, False),
        (
            {"certificate": "c", "key": "k", "allow_anonymous": True},
            {"password_file": "p"},
            True,
        ),
    ],
)
def test_flight_lets_clients_without_a_name_in_as_listeners_do(
    flight: dict[str, Any], users: dict[str, Any], expected: bool
) -> None:
    settings = BrokerSettings.model_validate({"flight": flight, "access": users})
    assert settings.lets_in_anonymous(settings.flight) is expected


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ({}, {}),
        (
            {"flight": {"port": 1, "host": "h"}},
            {"flight.enabled = true": ["flight.host", "flight.port"]},
        ),
        ({"flight": {"port": 1, "enabled": False}}, {}),
        ({"flight": {"port": 1, "enabled": True}}, {}),
        ({"topiclog": {"port": 1}}, {"topiclog.enabled = true": ["topiclog.port"]}),
        ({"tier": {"freshness": 5}}, {"tier.continuous = true": ["tier.freshness"]}),
        ({"storage": {"retain_seconds": 5}}, {}),
        (
            {"storage": {"retain_seconds": 5, "database": "m"}, "persistence": "snapshot"},
            {'persistence = "store"': ["storage.retain_seconds"]},
        ),
    ],
)
def test_settings_of_what_is_off_are_found(
    given: dict[str, Any], idle: dict[str, list[str]]
) -> None:
    assert BrokerSettings.model_validate(given).without_effect() == idle
