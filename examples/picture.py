"""The picture at the end of the demonstration: what happened, in four plots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.story import Points, Story

BLUE, RED, GREEN, GREY = "#1f6f8b", "#c0392b", "#4c8c4a", "#666666"
BIN_SECONDS = 0.2
# A latency in the outage is its length: seconds, where all others are milliseconds.
SIZE_INCHES = (12.0, 7.6)
DOTS_PER_INCH = 110


def draw(story: Story, path: Path) -> None:
    """Write the picture as a PNG."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    places = figure.subplots(2, 2)
    _draw_rate(places[0][0], story)
    _draw_latency(places[0][1], story)
    _draw_backlog(places[1][0], story)
    _draw_sensor(places[1][1], story)
    figure.suptitle("Siltstone: kill -9 while 60 devices publish", fontsize=15, weight="bold")
    figure.savefig(path, dpi=DOTS_PER_INCH)


def rates(points: Points, bin_seconds: float) -> Points:
    """Return the growth of a count for each bin of time, from points (time, count)."""
    if not points:
        return []
    first, last = points[0][0], points[-1][0]
    edges = [first + n * bin_seconds for n in range(int((last - first) / bin_seconds) + 2)]
    counts = [_count_at(points, edge) for edge in edges]
    return [
        (start + bin_seconds / 2, (after - before) / bin_seconds)
        for (start, _), (before, after) in zip(pairwise(edges), pairwise(counts), strict=True)
    ]


def _count_at(points: Points, moment: float) -> float:
    """Return the last count up to a moment."""
    count = points[0][1]
    for at, value in points:
        if at > moment:
            break
        count = value
    return count


def _since(points: Sequence[tuple[float, float]], start: float) -> tuple[list[float], list[float]]:
    return [at - start for at, _ in points], [value for _, value in points]


def _mark_outage(axes: Axes, story: Story, start: float) -> None:
    axes.axvspan(story.killed_at - start, story.back_at - start, color=RED, alpha=0.12, lw=0)
    axes.axvline(story.killed_at - start, color=RED, lw=1.4)
    axes.annotate(
        f"kill -9\nback in {story.back_at - story.killed_at:.1f} s",
        (story.killed_at - start, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        color=RED,
        ha="left",
        va="top",
        weight="bold",
    )
    # Both plots of the outage show the time in which devices published.
    axes.set_xlim(0, story.acknowledged[-1][0] - start)


def _finish(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_rate(axes: Axes, story: Story) -> None:
    start = story.acknowledged[0][0]
    across, up = _since(rates(story.acknowledged, BIN_SECONDS), start)
    axes.fill_between(across, up, color=BLUE, alpha=0.25, lw=0)
    axes.plot(across, up, color=BLUE)
    _mark_outage(axes, story, start)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _finish(axes, "Messages acknowledged after a sync", "seconds", "messages per second")


def _draw_latency(axes: Axes, story: Story) -> None:
    start = story.acknowledged[0][0]
    across, up = _since(story.latencies_ms, start)
    axes.scatter(across, up, s=7, color=BLUE, alpha=0.6, lw=0)
    axes.set_yscale("log")
    _mark_outage(axes, story, start)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _finish(axes, "PUBACK latency of one more publisher", "seconds", "milliseconds (log)")


def _draw_backlog(axes: Axes, story: Story) -> None:
    start = story.received[0][0]
    across, up = _since([(at, story.backlog - count) for at, count in story.received], start)
    axes.fill_between(across, up, color=GREEN, alpha=0.25, lw=0)
    axes.plot(across, up, color=GREEN)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _finish(
        axes,
        "Backlog of the session that was offline",
        "seconds since the client returned",
        "messages waiting",
    )


def _draw_sensor(axes: Axes, story: Story) -> None:
    across, up = _since(story.values, 0.0)
    axes.plot(across, up, color=GREY, lw=1)
    _finish(axes, f"Delta table: {story.sensor}", "reading number", "value")
