"""What the log and the errors say: every text is read from the source."""

from __future__ import annotations

import re

from tools.log_events import MEANINGS, MORE_FACTS, PAGE, PASSES_ON, page, sites

EVENT = re.compile(r"[a-z][a-z0-9_]*")


def test_every_log_event_has_a_name_that_tools_can_match() -> None:
    unnamed = [site for site in sites() if not EVENT.fullmatch(site.event)]
    assert {(site.module, site.event) for site in unnamed} == {(name, "") for name in PASSES_ON}


def test_every_log_event_has_one_meaning_and_every_meaning_an_event() -> None:
    named = {site.event for site in sites()} - {""}
    assert named ^ MEANINGS.keys() == set()
    assert MORE_FACTS.keys() - named == set()


def test_the_page_of_log_events_is_what_the_code_says() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python tools/log_events.py"
