from __future__ import annotations

from dataclasses import fields
from typing import get_args

from typer.models import OptionInfo

from siltstone.cli.store import setting_options
from siltstone.cli.store.settings import SETTINGS, shown_default
from siltstone.store.slab.settings import DatabaseSettings


def test_every_setting_of_a_database_has_an_option_that_shows_its_default() -> None:
    defined = [
        option
        for annotation in vars(setting_options).values()
        for option in get_args(annotation)[1:]
        if isinstance(option, OptionInfo)
    ]
    # In an annotation the first of the names stands in the place of the default.
    shown = {option.default: option.show_default for option in defined}
    assert shown == {
        f"--{SETTINGS[field.name].option}": shown_default(field.name)
        for field in fields(DatabaseSettings)
    }


def test_the_quota_says_what_is_counted_and_that_it_may_be_passed() -> None:
    option = get_args(setting_options.Quota)[1]
    assert option.help == (
        "Size on disk beyond which appends are refused. Space is allocated in steps; the last "
        "step may exceed the quota."
    )
