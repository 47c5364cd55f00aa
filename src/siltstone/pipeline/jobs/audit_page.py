"""An audit as one HTML page with charts, without scripts and external files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from siltstone.pipeline.jobs.audit import AuditReport, SlabAudit

_WIDTH: Final = 640
_BAR: Final = 18
_LABEL: Final = 150
_COLOURS: Final = {"tiered": "#2f6f73", "waiting": "#d9b44a", "missing": "#b3392f"}
_PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd }}
th:first-child, td:first-child {{ text-align: left }}
.bad {{ color: #b3392f; font-weight: 600 }}
.key span {{ display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem }}
svg text {{ font-size: 12px; fill: #444 }}
</style></head><body>
<h1>{title}</h1><p class="{mood}">{verdict}</p>
<h2>Rows by slab</h2>{key}{slabs_chart}
{slabs_table}
<h2>Rows by table</h2>{tables_chart}
</body></html>
"""


def audit_page(report: AuditReport) -> str:
    """Return the page."""
    told = report.findings() or [
        "every row is accounted for: nothing is missing, double, different"
    ]
    verdict = " ".join(f"{escape(text[0].upper() + text[1:])}." for text in told)
    key = "".join(
        f'<span style="background:{colour}"></span>{name}' for name, colour in _COLOURS.items()
    )
    return _PAGE.format(
        title=f"Audit of {escape(report.database)}",
        mood="good" if report.is_sound else "bad",
        verdict=verdict,
        key=f'<p class="key">{key}</p>',
        slabs_chart=bars([(slab.slab, _parts(slab)) for slab in report.slabs]),
        slabs_table=_slabs_table(report.slabs),
        tables_chart=bars([(name, {"tiered": rows}) for name, rows in report.tables.items()]),
    )


def _parts(slab: SlabAudit) -> dict[str, int]:
    return {"tiered": slab.tiered, "waiting": slab.waiting, "missing": slab.missing}


def bars(rows: Sequence[tuple[str, dict[str, int]]]) -> str:
    """Return a chart with one bar for each name; its parts are side by side."""
    most = max((sum(parts.values()) for _, parts in rows), default=0) or 1
    lines: list[str] = []
    for number, (name, parts) in enumerate(rows):
        top = number * (_BAR + 6)
        lines.append(f'<text x="0" y="{top + 13}">{escape(name)}</text>')
        left = float(_LABEL)
        for part, count in parts.items():
            width = count * (_WIDTH - _LABEL) / most
            lines.append(
                f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{_COLOURS[part]}"><title>{part}: {count:,}</title></rect>'
            )
            left += width
        lines.append(f'<text x="{left + 6:.1f}" y="{top + 13}">{sum(parts.values()):,}</text>')
    height = len(rows) * (_BAR + 6)
    return f'<svg width="{_WIDTH + 110}" height="{height}" role="img">{"".join(lines)}</svg>'


def _slabs_table(slabs: Sequence[SlabAudit]) -> str:
    names = ("slab", "expected", "stored", "tiered", "waiting", "missing", "duplicates", "gaps")
    head = "".join(f"<th>{name}</th>" for name in (*names, "content"))
    body: list[str] = []
    for slab in slabs:
        stored = "dropped" if slab.stored is None else f"{slab.stored:,}"
        numbers = (slab.tiered, slab.waiting, slab.missing, slab.duplicates, slab.gaps)
        cells = [slab.slab, f"{slab.expected:,}", stored, *(f"{item:,}" for item in numbers)]
        cells.append("differs" if slab.differs else "same")
        mood = "" if slab.is_sound else ' class="bad"'
        body.append(f"<tr{mood}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"
