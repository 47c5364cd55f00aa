"""The table: figures of each broker, ratios of Siltstone to the others, and the targets."""

from __future__ import annotations

from typing import Final

from rich.markup import escape
from rich.table import Table

from bench.broker.loads import Load, Target
from bench.broker.rounds import Failure, Summary

_COLUMNS: Final = ("load", "broker", "median", "rounds", "CPU µs/msg", "ratio", "target", "held")


def new_table(title: str) -> Table:
    """Return the table without rows."""
    table = Table(title=title)
    for column in _COLUMNS:
        left = column in {"load", "broker"}
        table.add_column(column, justify="left" if left else "right", no_wrap=not left)
    return table


def add_rows(table: Table, load: Load, outcomes: list[Summary | Failure]) -> None:
    """Add the results of a load; a target is in the row of the contender that must reach it."""
    values = {outcome.name: outcome.value for outcome in outcomes if isinstance(outcome, Summary)}
    title = f"{load.name}: {load.title}"
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            table.add_row(title, escape(f"{outcome.name}: {outcome.text}"), "failed")
        else:
            targets = [
                target
                for target in load.targets
                if target.ours == outcome.name and target.theirs in values
            ]
            table.add_row(
                title,
                _name(outcome),
                _figure(load, outcome.value),
                f"{_figure(load, outcome.lowest)} … {_figure(load, outcome.highest)}",
                f"{outcome.cpu_us:.2f}",
                *_verdicts(load, targets, values),
            )
        title = ""
    table.add_section()


def _verdicts(load: Load, targets: list[Target], values: dict[str, float]) -> tuple[str, str, str]:
    """Return the cells of ratio, bound and verdict, a line for each target."""
    ratios, bounds, held = [], [], []
    for target in targets:
        ratio = values[target.ours] / values[target.theirs]
        holds = ratio >= target.factor if load.is_rate else ratio <= target.factor
        ratios.append(f"{ratio:.2f}x {target.theirs}")
        bounds.append(f"{'≥' if load.is_rate else '≤'} {target.factor:g}x")
        held.append("yes" if holds else "NO")
    return "\n".join(ratios), "\n".join(bounds), "\n".join(held)


def _figure(load: Load, value: float) -> str:
    return f"{value:,.0f}/s" if load.is_rate else f"{value / 1000:.2f} ms"


def _name(summary: Summary) -> str:
    faults = {
        "lost": summary.lost,
        "out of order": summary.out_of_order,
        "twice": summary.duplicates,
    }
    told = [f"{count:,} {fault}" for fault, count in faults.items() if count]
    return f"{summary.name} ({', '.join(told)})" if told else summary.name
