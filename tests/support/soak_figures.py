"""What a soak of the lake has shown: the comparison, the freshness and the picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.lake.delta import batch_of, present_tables
from tests.support.lake import lake_of
from tests.support.soak_devices import Fleet, payload_of, topic_of

_BATCH_ROWS: Final = 100_000
_MINUTE: Final = 60.0
Numbers = np.ndarray[Any, np.dtype[Any]]


def compare(path: Path, fleet: Fleet) -> dict[str, Any]:
    """Compare the lake with what was acknowledged, as two readers see it."""
    lake = lake_of(path)
    seen = [np.zeros(device.sent, dtype=np.int64) for device in fleet.devices]
    wrong = rows = 0
    counts: dict[str, int] = {}
    for name in present_tables(PosixFileSystem(), lake):
        table = DeltaTable(str(lake / name))
        dataset = table.to_pyarrow_dataset()
        counts[name] = dataset.count_rows()
        rows += counts[name]
        typed = [name for name in ("value", "_rescued") if name in dataset.schema.names]
        for batch in dataset.to_batches(
            columns=["topic", "payload", *typed], batch_size=_BATCH_ROWS
        ):
            wrong += _check(batch.to_pydict(), seen)
    acknowledged = [np.asarray(device.acknowledged) >= 0 for device in fleet.devices]
    pairs = list(zip(acknowledged, seen, strict=True))
    return {
        "acknowledged": int(sum(answered.sum() for answered, _ in pairs)),
        "rows": rows,
        "missing": int(sum((answered & (times == 0)).sum() for answered, times in pairs)),
        "twice": int(sum(np.maximum(times - 1, 0).sum() for times in seen)),
        "wrong": wrong,
        "tables": counts,
        "by_duckdb": _by_duckdb(lake, list(counts), seen),
    }


def _check(batch: Mapping[str, Sequence[Any]], seen: Sequence[Numbers]) -> int:
    """Count the rows of a batch by device and number; return how many have other contents."""
    wrong = 0
    values = batch.get("value", [None] * len(batch["topic"]))
    rescued = batch.get("_rescued", [None] * len(batch["topic"]))
    for topic, payload, value, beside in zip(
        batch["topic"], batch["payload"], values, rescued, strict=True
    ):
        document = json.loads(payload)
        unit, number, sent = document["unit"], document["number"], document["value"]
        if (
            not _is_kept(sent, value, beside)
            or payload != payload_of(unit, number)
            or topic != topic_of(unit)
        ):
            wrong += 1
        else:
            seen[unit][number] += 1
    return wrong


def _is_kept(sent: Any, value: Any, beside: str | None) -> bool:
    """Return whether a value is in its column, or beside it; a column of text holds JSON."""
    if isinstance(value, str):
        return value == (sent if isinstance(sent, str) else json.dumps(sent))
    return value == sent or (value is None and json.loads(beside or "{}").get("value") == sent)


def _by_duckdb(lake: Path, tables: Sequence[str], seen: Sequence[Numbers]) -> dict[str, int]:
    """Count the rows as DuckDB reads the Parquet files; `differs` has the devices it disputes."""
    files = [file for name in tables for file in DeltaTable(str(lake / name)).file_uris()]
    found = duckdb.execute(
        "SELECT unit, count(*), count(DISTINCT number), sum(number) "
        "FROM read_parquet(?, union_by_name = true) GROUP BY unit",
        [files],
    )
    counted = {int(unit): tuple(map(int, rest)) for unit, *rest in found.fetchall()}
    differs = 0
    for unit, times in enumerate(seen):
        numbers = np.nonzero(times)[0]
        differs += counted.get(unit, (0, 0, 0)) != (
            int(times.sum()),
            len(numbers),
            int((np.arange(len(times)) * times).sum()),
        )
    return {"rows": sum(count for count, _, _ in counted.values()), "differs": differs}


@dataclass(frozen=True, slots=True)
class Freshness:
    """When rows were acknowledged, and how long it took until a reader of the table had them."""

    acknowledged: Numbers
    seconds: Numbers

    def since(self, start: float) -> Numbers:
        """Return the seconds of the rows that were acknowledged from a time on."""
        chosen: Numbers = self.seconds[self.acknowledged >= start]
        return chosen

    def by_minute(self) -> list[dict[str, float]]:
        """Return the quantiles of each minute."""
        minutes = (self.acknowledged // _MINUTE).astype(int)
        return [
            {"seconds": (minute + 0.5) * _MINUTE} | quantiles(self.seconds[minutes == minute])
            for minute in np.unique(minutes)
        ]


def freshness(path: Path, fleet: Fleet, *, until: float) -> Freshness:
    """Return the time between the acknowledgement of each row and the commit with its file.

    Rows that were acknowledged after the end are left out: a run by hand tiers some of them.
    """
    lake = lake_of(path)
    times = [np.asarray(device.acknowledged) for device in fleet.devices]
    when: list[Numbers] = []
    waited: list[Numbers] = []
    for name in present_tables(PosixFileSystem(), lake):
        for commit in sorted((lake / name / "_delta_log").glob("*.json")):
            visible = commit.stat().st_mtime - fleet.began
            for line in commit.read_text().splitlines():
                added = json.loads(line).get("add")
                if added is None or batch_of(added["path"]) is None:
                    continue
                rows = pq.read_table(lake / name / added["path"], columns=["unit", "number"])
                units = pc.cast(rows.column("unit"), "int64").to_numpy()
                numbers = pc.cast(rows.column("number"), "int64").to_numpy()
                answered = np.empty(len(units))
                for unit in np.unique(units):
                    chosen = units == unit
                    answered[chosen] = times[unit][numbers[chosen]]
                answered = answered[(answered >= 0) & (answered < until)]
                when.append(answered)
                # A commit may come before the acknowledgement reaches its device.
                waited.append(np.maximum(visible - answered, 0))
    return Freshness(np.concatenate(when), np.concatenate(waited))


def quantiles(seconds: Numbers) -> dict[str, float]:
    """Return the median and two high quantiles of some times."""
    if not len(seconds):
        return {}
    p50, p95, p99 = np.quantile(seconds, (0.5, 0.95, 0.99))
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2), "p99": round(float(p99), 2)}


_WIDTH: Final = 760
_HEIGHT: Final = 120
_LEFT: Final = 70
_RIGHT: Final = 140
_COLOURS: Final = ("#2563eb", "#d97706", "#059669")
_Line = tuple[str, list[tuple[float, float]]]


def picture(found: Mapping[str, Any]) -> str:
    """Return the run as an SVG picture: a panel for each measure, a grey line for each kill."""
    samples = found["samples"]

    def line(name: str, key: str, points: Sequence[Mapping[str, float]] = samples) -> _Line:
        return name, [(each["seconds"], each[key]) for each in points]

    waiting = [(each["seconds"], each["acknowledged"] - each["tiered"]) for each in samples]
    panels: list[tuple[str, list[_Line]]] = [
        ("Live files of the largest table", [line("files", "files")]),
        ("Versions of the largest table", [line("versions", "versions")]),
        (
            "Memory, MiB",
            [
                line("Python driver", "driver_mib"),
                line("JVM", "jvm_mib"),
                line("broker", "broker_mib"),
            ],
        ),
        ("Acknowledged rows that are not in the lake yet", [("rows", waiting)]),
        (
            "Seconds from PUBACK to a row that can be read",
            [line("p50", "p50", found["minutes"]), line("p95", "p95", found["minutes"])],
        ),
    ]
    last = found["seconds"]
    total = _HEIGHT * len(panels) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {total}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{total}" fill="#ffffff"/>',
    ]
    for number, (title, lines) in enumerate(panels):
        parts += _panel(number * _HEIGHT + 24, title, lines, found["killed"], last)
    parts.append(
        f'<text x="{_LEFT}" y="{total - 8}">0 min</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{total - 8}" text-anchor="end">{last / _MINUTE:.0f} min'
        "</text></g></svg>"
    )
    return "\n".join(parts) + "\n"


def _panel(
    top: int, title: str, lines: Sequence[_Line], killed: Sequence[tuple[float, str]], last: float
) -> list[str]:
    tall, wide = _HEIGHT - 42, _WIDTH - _LEFT - _RIGHT
    most = max(1.0, *(value for _, points in lines for _, value in points))

    def across(seconds: float) -> float:
        return _LEFT + min(seconds / last, 1.0) * wide

    parts = [
        f'<text x="{_LEFT}" y="{top - 6}" font-weight="bold">{title}</text>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{most:,.0f}</text>',
        f'<text x="{_LEFT - 6}" y="{top + tall}" text-anchor="end">0</text>',
    ]
    parts += [
        f'<line x1="{across(when):.1f}" y1="{top}" x2="{across(when):.1f}" y2="{top + tall}" '
        'stroke="#d1d5db"/>'
        for when, _ in killed
    ]
    parts.append(
        f'<path d="M{_LEFT} {top}V{top + tall}H{_LEFT + wide}" fill="none" stroke="#6b7280"/>'
    )
    for number, (name, points) in enumerate(lines):
        drawn = " ".join(
            f"{across(when):.1f},{top + tall * (1 - max(value, 0) / most):.1f}"
            for when, value in points
        )
        colour = _COLOURS[number]
        parts += [
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{drawn}"/>',
            _text(_LEFT + wide + 10, top + 12 + 16 * number, name, colour),
        ]
    return parts


def _text(left: int, top: int, text: str, colour: str) -> str:
    return f'<text x="{left}" y="{top}" fill="{colour}">{text}</text>'
