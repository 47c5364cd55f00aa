from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from siltstone.pipeline.jobs.audit import AuditReport, SlabAudit
from siltstone.pipeline.jobs.audit_page import audit_page, bars

SLAB = SlabAudit(
    slab="0/1",
    expected=10,
    stored=None,
    waiting=1,
    tiered=10,
    missing=0,
    duplicates=0,
    gaps=0,
    differs=False,
)
REPORT = AuditReport(database="a<b", slabs=[SLAB], tables={"plant": 10})


def cells(page: str) -> list[str]:
    return re.findall(r"<td>(.*?)</td>", page)


def test_the_page_says_what_the_report_says() -> None:
    page = audit_page(REPORT)
    HTMLParser().feed(page)
    assert cells(page) == ["0/1", "10", "dropped", "10", "1", "0", "0", "0", "same"]
    assert "Every row is accounted for" in page
    assert "Audit of a&lt;b" in page
    assert "http" not in page.replace("http-equiv", "")


def test_what_is_amiss_stands_out() -> None:
    page = audit_page(replace(REPORT, slabs=[replace(SLAB, missing=2)]))
    assert '<p class="bad">Rows are missing, double or different.</p>' in page
    assert '<tr class="bad">' in page


def test_bars_are_as_long_as_their_numbers() -> None:
    chart = bars([("a", {"tiered": 30, "waiting": 10}), ("b", {"tiered": 20})])
    assert [float(width) for width in re.findall(r'width="([\d.]+)" height="18"', chart)] == [
        367.5,
        122.5,
        245.0,
    ]
    assert bars([]) == '<svg width="750" height="0" role="img"></svg>'
