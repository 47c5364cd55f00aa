from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import pytest

from siltstone.broker.settings.broker import BrokerSettings, Limits, ListenerSettings
from siltstone.broker.settings.load import (
    FLAGS,
    LoadedSettings,
    dotted_name,
    field_of,
    find_file,
    known_keys,
    model_of,
    read_settings,
    variable_name,
)
from siltstone.broker.settings.storage import Storage, StoreRule
from siltstone.errors import UsageError
from siltstone.fs.memory import MemoryFileSystem
from tests.support.loaded_settings import load_settings

FILE = PurePath("/etc.toml")
NOTHING: Mapping[str, str] = {}


def loaded(
    toml: str | bytes | None = None,
    environment: Mapping[str, str] = NOTHING,
    overrides: Mapping[str, str] = NOTHING,
) -> LoadedSettings:
    fs = MemoryFileSystem()
    if toml is not None:
        with fs.create(FILE) as file:
            file.write(toml if isinstance(toml, bytes) else toml.encode())
    return read_settings(None if toml is None else FILE, environment, overrides, fs=fs)


def complaints(
    toml: str | bytes | None = None,
    environment: Mapping[str, str] = NOTHING,
    overrides: Mapping[str, str] = NOTHING,
) -> list[str]:
    with pytest.raises(UsageError) as caught:
        loaded(toml, environment, overrides)
    return str(caught.value).splitlines()


def test_without_anything_the_defaults_hold() -> None:
    assert load_settings(None, {}, {}) == BrokerSettings()


def test_flags_win_over_the_environment_over_the_file_over_defaults() -> None:
    found = loaded(
        "[limits]\nreceive_max = 1\ninflight_max = 1\nqueued_messages_max = 1",
        {"SILTSTONE_LIMITS__RECEIVE_MAX": "2", "SILTSTONE_LIMITS__INFLIGHT_MAX": "2"},
        {"limits.receive_max": "3"},
    )
    assert found.settings == BrokerSettings(
        limits=Limits(receive_max=3, inflight_max=2, queued_messages_max=1)
    )
    keys = ("receive_max", "inflight_max", "queued_messages_max", "topic_alias_max")
    assert [found.origin(("limits", key)) for key in keys] == [
        "--set limits.receive_max",
        "SILTSTONE_LIMITS__INFLIGHT_MAX",
        "/etc.toml",
        None,
    ]


def test_every_key_can_be_given_by_variable_and_by_flag() -> None:
    """Each default, given again as text, changes nothing, and its origin is known."""
    simple = [key for key in known_keys() if model_of(key) is None and len(key) < 3]
    given = {
        key: value
        for key in simple
        if isinstance(value := field_of(key).default, str | int | float) and value != ""
    }
    assert len(given) > 30
    variables = {variable_name(key): str(value).lower() for key, value in given.items()}
    flags = {dotted_name(key): str(value).lower() for key, value in given.items()}
    assert loaded(None, variables).settings == BrokerSettings()
    assert loaded(None, {}, flags).settings == BrokerSettings()
    assert [loaded(None, variables).origin(key) for key in given] == list(variables)


def test_the_variable_of_a_key_joins_its_words_by_two_underscores() -> None:
    assert variable_name(("limits", "packet_size_max")) == "SILTSTONE_LIMITS__PACKET_SIZE_MAX"
    assert variable_name(("listeners", 0, "port")) == "SILTSTONE_LISTENERS__0__PORT"


def test_the_flags_with_a_name_are_of_keys_that_exist() -> None:
    assert set(FLAGS.values()) <= {dotted_name(key) for key in known_keys()}


def test_lists_and_tables_are_given_as_json() -> None:
    environment = {
        "SILTSTONE_LISTENERS": '[{"port": 1}, {"kind": "ws", "port": 2}]',
        "SILTSTONE_STORAGE__THRESHOLDS": "[7, 0]",
    }
    flags = {"storage.rules": '[{"filter": "a/#", "store": "never"}]', "log": '{"level": "debug"}'}
    found = loaded("[[listeners]]\nport = 9", environment, flags).settings
    assert found.listeners == (ListenerSettings(port=1), ListenerSettings(kind="ws", port=2))
    assert found.storage == Storage(
        thresholds=(7, 0), rules=(StoreRule(filter="a/#", store="never"),)
    )
    assert (found.log.level, found.log.format) == ("debug", "human")


def test_a_number_picks_one_of_a_list_or_the_next() -> None:
    file = "[[listeners]]\nport = 1\n[[listeners]]\nport = 2"
    environment = {"SILTSTONE_LISTENERS__1__PORT": "20", "SILTSTONE_LISTENERS__2__PORT": "30"}
    found = loaded(file, environment, {"--port": "10"})
    assert [listener.port for listener in found.settings.listeners] == [10, 20, 30]
    assert [found.origin(("listeners", index, "port")) for index in range(3)] == [
        "--port",
        "SILTSTONE_LISTENERS__1__PORT",
        "SILTSTONE_LISTENERS__2__PORT",
    ]


def test_without_a_list_a_number_picks_one_of_the_defaults() -> None:
    found = loaded(None, {}, {"--port": "1884", "storage.thresholds.1": "5"}).settings
    assert found.listeners == (ListenerSettings(port=1884),)
    assert found.storage.thresholds == (100, 5)


def test_a_list_given_whole_replaces_what_came_before() -> None:
    found = loaded(
        "[[listeners]]\nport = 1\n[[listeners]]\nport = 2", {"SILTSTONE_LISTENERS": '[{"port": 3}]'}
    )
    assert found.settings.listeners == (ListenerSettings(port=3),)
    assert found.origins == {("listeners",): "SILTSTONE_LISTENERS"}
    assert found.origin(("listeners", 0, "port")) == "SILTSTONE_LISTENERS"


def test_a_key_given_by_its_flag_or_by_set_is_told_apart() -> None:
    origins = [loaded(None, {}, {flag: "x"}).origin(("data",)) for flag in ("--data", "data")]
    assert origins == ["--data", "--set data"]


def test_a_flag_may_be_written_with_dashes() -> None:
    assert loaded(None, {}, {"limits.receive-max": "7"}).settings.limits.receive_max == 7


def test_variables_of_others_are_left_alone() -> None:
    environment = {"PATH": "/bin", "SILTSTONE_PURE": "1", "SILTSTONE_CONFIG": "x.toml"}
    assert loaded(None, environment).settings == BrokerSettings()


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        (
            "[limits]\npacket_size_max = '4 parsecs'",
            (
                "limits.packet_size_max: expected a size from 128 to 268435460, "
                "such as 4096 or \"4 MiB\", found '4 parsecs'"
            ),
        ),
        (
            "[limits]\npacket_size_max = '4 PiB'",
            (
                "limits.packet_size_max: expected a size from 128 to 268435460, "
                "such as 4096 or \"4 MiB\", found '4 PiB'"
            ),
        ),
        (
            "[limits]\nreceive_max = true",
            "limits.receive_max: expected a whole number from 1 to 65535, found true",
        ),
        ("data = 5", "data: expected a text, found 5"),
        (
            "sys_interval = inf",
            (
                "sys_interval: expected a number of seconds, at least 0, "
                'such as 2.5 or "250ms", found inf'
            ),
        ),
        (
            "drain_timeout = 2026-01-31",
            (
                "drain_timeout: expected a number of seconds from 0 to 600, "
                'such as 2.5 or "250ms", found 2026-01-31'
            ),
        ),
        (f"data = ['{'x' * 70}']", "data: expected a text, found a list"),
        ("[data]\nx = 1", "data: expected a text, found a table"),
        (
            f"[log]\nlevel = '{'x' * 70}'",
            f"log.level: expected one of debug, info, warning, error, found '{'x' * 60}'…",
        ),
        ("log = 'json'", "log: expected a table, found 'json'"),
        ("listeners = 3", "listeners: expected a list of tables, found 3"),
        ("listeners = [3]", "listeners.0: expected a table, found 3"),
        ("listeners = []", "listeners: is empty: a broker needs at least one listener"),
        (
            "[storage]\nthresholds = []",
            (
                "storage.thresholds: expected a list of whole numbers from -1 to 2147483647, "
                "found an empty list"
            ),
        ),
        (
            "[storage]\nthresholds = [-5]",
            (
                "storage.thresholds.0: expected a list of whole numbers from -1 to 2147483647, "
                "found -5"
            ),
        ),
        (
            "[[storage.rules]]\nstore = 'never'",
            "storage.rules.0.filter: is missing, expected a topic filter",
        ),
        (
            "[[storage.rules]]\nfilter = 'a/#/b'",
            "storage.rules.0.filter: # must be the last level, alone: filter='a/#/b'",
        ),
        (
            "[[listeners]]\nkind = 'tls'",
            "listeners.0.certificate: is missing: tls needs a certificate and its key",
        ),
        (
            "[access]\nlogin_delay_max = 0.1",
            "access.login_delay: must not be above login_delay_max",
        ),
        (
            "[limits]\nreceive_maxx = 1",
            "limits.receive_maxx: unknown key, did you mean receive_max?",
        ),
        ("[limit]\nreceive_max = 1", "limit: unknown key, did you mean limits?"),
        ("receive_max = 1", "receive_max: unknown key, did you mean limits.receive_max?"),
        ("[[listeners]]\nprot = 1", "listeners.0.prot: unknown key, did you mean port?"),
        (
            "[[storage.rules]]\nfilter = 'a'\nretain_seconds = 5",
            (
                "storage.rules.0.retain_seconds: unknown key, it is set for the whole database: "
                "storage.retain_seconds"
            ),
        ),
        ("zzzz = 1", "zzzz: unknown key; 'siltstone config reference' lists all keys"),
        ('"a\\nb" = 1', "\"a\\nb\": unknown key; 'siltstone config reference' lists all keys"),
    ],
)
def test_a_wrong_file_is_refused_by_key_expectation_and_what_was_found(
    toml: str, complaint: str
) -> None:
    assert complaints(toml) == [f"/etc.toml: {complaint}"]


def test_a_wrong_variable_is_refused_by_its_name() -> None:
    environment = {
        "SILTSTONE_LIMITS__RECEIVE_MAX": "many",
        "SILTSTONE_LIMITS__RECEIVE_MAXX": "1",
        "SILTSTONE_LISTENERS": "[{",
        "SILTSTONE_data": "x",
        "SILTSTONE_LISTENERS__00__PORT": "1",
        "SILTSTONE_ZZZZZZZZZZZZZZZZZZZZZZ": "1",
    }
    assert complaints(None, environment) == [
        (
            "SILTSTONE_LIMITS__RECEIVE_MAXX: unknown variable, "
            "did you mean SILTSTONE_LIMITS__RECEIVE_MAX?"
        ),
        (
            "SILTSTONE_LISTENERS: listeners: expected a list of tables as JSON, "
            "found invalid JSON from character 3 on"
        ),
        (
            "SILTSTONE_LISTENERS__00__PORT: unknown variable, "
            "did you mean SILTSTONE_LISTENERS__0__PORT?"
        ),
        "SILTSTONE_ZZZZZZZZZZZZZZZZZZZZZZ: unknown variable",
        "SILTSTONE_data: unknown variable, did you mean SILTSTONE_DATA?",
        (
            "SILTSTONE_LIMITS__RECEIVE_MAX: limits.receive_max: "
            "expected a whole number from 1 to 65535, found 'many'"
        ),
    ]


def test_a_wrong_flag_is_refused_as_it_was_written() -> None:
    flags = {
        "--port": "70000",
        "limits.receive_max": "0",
        "limits.receive_maxx": "1",
        "limits.receive_max.0": "1",
        "limit.receive_max": "1",
        "log": '"json"',
        "listeners.2.port": "1",
    }
    assert complaints(None, {}, flags) == [
        "--set limits.receive_maxx: unknown key, did you mean receive_max?",
        "--set limits.receive_max.0: unknown key; 'siltstone config reference' lists all keys",
        "--set limit.receive_max: unknown key, did you mean limits?",
        "--set listeners.2.port: listeners.2.port: skips an index of its list",
        (
            "--set limits.receive_max: limits.receive_max: "
            "expected a whole number from 1 to 65535, found '0'"
        ),
        "--set log: log: expected a table, found 'json'",
        "--port: listeners.0.port: expected a whole number from 0 to 65535, found '70000'",
    ]


def test_what_a_wrong_file_has_in_place_of_a_table_is_not_hidden_by_a_flag() -> None:
    flags = {"limits.receive_max": "7", "--port": "7"}
    assert complaints("limits = 5\nlisteners = 6", {}, flags) == [
        "/etc.toml: limits: expected a table, found 5",
        "/etc.toml: listeners: expected a list of tables, found 6",
    ]


def test_settings_that_do_not_go_together_are_blamed_on_where_they_came_from() -> None:
    nobody = (
        "listeners.0: accepts no client at tcp://192.168.0.1:1884: set access.password_file or "
        "access.hook, or allow clients without a login with allow_anonymous = true"
    )
    host, port = {"--host": "192.168.0.1"}, "[[listeners]]\nport = 1884"
    assert complaints(port, {}, host) == [f"/etc.toml, --host: {nobody}"]
    variable = {"SILTSTONE_LISTENERS": '[{"host": "192.168.0.1", "port": 1884}]'}
    assert complaints(None, variable) == [f"SILTSTONE_LISTENERS: {nobody}"]


def test_the_value_of_an_unknown_key_is_never_shown() -> None:
    secret = complaints(
        "[access]\npassword = 'hunter2'",
        {"SILTSTONE_ACCESS__PASSWORD": "hunter2"},
        {"access.password": "hunter2"},
    )
    assert secret == [
        (
            "SILTSTONE_ACCESS__PASSWORD: unknown variable, "
            "did you mean SILTSTONE_ACCESS__PASSWORD_FILE?"
        ),
        "--set access.password: unknown key, did you mean password_file?",
        "/etc.toml: access.password: unknown key, did you mean password_file?",
    ]


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("[limits]\nreceive_max =\n", "invalid TOML: invalid value (at line 2, column 14)"),
        ("a = 1\na = 2", "invalid TOML: cannot overwrite a value (at the end, line 2)"),
        (b"a = 1\nb = '\xff'", "invalid UTF-8 (at line 2)"),
    ],
)
def test_a_file_that_is_no_toml_is_refused_by_line(toml: str | bytes, complaint: str) -> None:
    assert complaints(toml) == [f"/etc.toml: {complaint}"]


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(PurePath("/none.toml"), {}, {}, fs=MemoryFileSystem())
    assert str(caught.value) == "/none.toml: the file does not exist"


def test_the_file_is_the_one_named_or_of_the_environment_or_the_one_here() -> None:
    fs, environment = MemoryFileSystem(), {"SILTSTONE_CONFIG": "/other.toml"}
    assert find_file(None, {}, fs=fs) is None
    fs.create(PurePath("siltstone.toml")).close()
    assert [
        find_file(PurePath("/named.toml"), environment, fs=fs),
        find_file(None, environment, fs=fs),
        find_file(None, {"SILTSTONE_CONFIG": ""}, fs=fs),
    ] == [PurePath("/named.toml"), PurePath("/other.toml"), PurePath("siltstone.toml")]


def test_an_empty_list_in_place_of_a_table_is_refused_in_a_sentence() -> None:
    assert complaints("[[limits]]\n") == [
        "the settings file: limits: expected a table, found a list"
    ]


@pytest.mark.parametrize("text", ["[" * 100_000, "[" + "9" * 5_000 + "]"])
def test_a_list_that_no_parser_can_take_is_complained_about(text: str) -> None:
    assert complaints(None, {"SILTSTONE_LISTENERS": text}) == [
        "SILTSTONE_LISTENERS: listeners: is nested too deeply, or has a number with too many digits"
    ]
