from __future__ import annotations

from typing import Any

import pytest

from siltstone.broker.settings.kinds import expectation, toml_text
from siltstone.broker.settings.load import (
    dotted_name,
    field_of,
    known_keys,
    model_of,
    variable_name,
)
from siltstone.errors import UsageError
from siltstone.settings.declare import Declared, Kind, declared
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.loaded_settings import load_settings

KNOWN = declared(DatabaseSettings)


def another(known: Declared) -> Any:
    """Return an allowed value that is not the default."""
    match known.setting.kind:
        case Kind.CHOICE:
            return next(value for value in known.setting.choices if value != known.default)
        case Kind.LEVELS:
            return (7, 0)
        case Kind.SECONDS:
            return 5.0
        case _:
            high = known.setting.high
            if high is not None and high < 1 << 16:
                return high
            return 1 << 16 if known.default != 1 << 16 else 1 << 17


def loaded(text: str, given_by: str, known: Declared) -> DatabaseSettings:
    key = ("storage", known.field)
    variables = {variable_name(key): text} if given_by == "variable" else {}
    flags = {dotted_name(key): text} if given_by == "flag" else {}
    settings = load_settings(None, variables, flags).storage.database_settings()
    assert isinstance(settings, DatabaseSettings)
    return settings


@pytest.mark.parametrize("given_by", ["variable", "flag"])
@pytest.mark.parametrize("field", [field for field in KNOWN if field != "shards"])
def test_every_setting_of_a_database_can_be_given_to_the_broker(field: str, given_by: str) -> None:
    known = KNOWN[field]
    value = another(known)
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    assert loaded(text, given_by, known) == DatabaseSettings(**{field: value})


@pytest.mark.parametrize("field", KNOWN)
def test_a_value_that_the_database_refuses_is_refused_with_its_key(field: str) -> None:
    """A wrong value must not pass the file and fail when the broker creates the database."""
    known, setting = KNOWN[field], KNOWN[field].setting
    wrong: list[object] = ["nothing"]
    for bound in (setting.high, setting.limit):
        wrong += [] if bound is None else [bound + 4096]
    wrong += [] if setting.low is None else [setting.low - 4096]
    wrong += [] if setting.above is None else [setting.above]
    for value in wrong:
        text = f"[{value}]" if setting.kind is Kind.LEVELS else str(value)
        with pytest.raises(UsageError) as caught:
            loaded(text, "flag", known)
        assert str(caught.value).startswith(f"--set storage.{field}: storage.{field}")


@pytest.mark.parametrize("field", KNOWN)
def test_a_key_has_the_help_and_the_default_of_its_declaration(field: str) -> None:
    known, key = KNOWN[field], field_of(("storage", field))
    assert key.default == known.default
    assert (key.description or "").startswith(known.setting.help)
    assert toml_text(key, key.default)


def test_a_key_of_a_table_may_have_the_name_of_another_database_setting() -> None:
    topiclog = load_settings(None, {}, {"topiclog.pending_bytes_max": "1 MiB"}).topiclog
    assert topiclog.pending_bytes_max == 1 << 20
    assert topiclog.database_settings() == DatabaseSettings(shard_by="topic")


def test_only_a_list_of_tables_is_called_so() -> None:
    called = {
        key for key in known_keys() if expectation(field_of(key)).startswith("a list of tables")
    }
    assert {("listeners",), ("bridge",)} <= called
    assert [key for key in called if not (model_of(key) or model_of((*key, 0)))] == []
