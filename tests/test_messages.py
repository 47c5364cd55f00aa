"""What the log and the errors say: every text is read from the source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.log_events import MEANINGS, MORE_FACTS, PAGE, PASSES_ON, SOURCE, page, sites
from tools.messages import BANNED, messages

EVENT = re.compile(r"[a-z][a-z0-9_]*")
# A sentence begins in lower case, but for names. Acronyms, such as MQTT, pass.
CAPITAL = re.compile(r"(?!(?:Arrow|Parquet|Spark)\b)[A-Z][a-z]")
FULL_STOP = re.compile(r"[^.]\.$")


def errors() -> Iterator[tuple[str, str]]:
    """Yield where each error is written, and what it says."""
    for path in sorted(SOURCE.rglob("*.py")):
        for message in messages(path):
            if message.kind == "error":
                yield f"{path.relative_to(SOURCE)}:{message.line}", message.text


def errors_with(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    return [(where, text) for where, text in errors() if pattern.search(text)]


def test_every_log_event_has_a_name_that_tools_can_match() -> None:
    unnamed = [site for site in sites() if not EVENT.fullmatch(site.event)]
    assert {(site.module, site.event) for site in unnamed} == {(name, "") for name in PASSES_ON}


def test_every_log_event_has_one_meaning_and_every_meaning_an_event() -> None:
    named = {site.event for site in sites()} - {""}
    assert named ^ MEANINGS.keys() == set()
    assert MORE_FACTS.keys() - named == set()


def test_the_page_of_log_events_is_what_the_code_says() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python tools/log_events.py"


def test_the_errors_are_found() -> None:
    assert len(list(errors())) > 800


def test_no_error_has_words_that_need_a_second_reading() -> None:
    assert errors_with(BANNED) == []


def test_no_error_begins_with_a_capital_or_ends_with_a_full_stop() -> None:
    assert [(where, text) for where, text in errors() if CAPITAL.match(text)] == []
    assert errors_with(FULL_STOP) == []
