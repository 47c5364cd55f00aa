"""Run a load against its contenders in turns, and keep the medians."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.broker.clients import RefusedError, other_filters, subscribed
from bench.broker.generator import GeneratorError, Result, run_load
from bench.broker.loads import Contender, Load
from bench.peers import Peer, PeerError
from bench.workload import scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The results of one contender's rounds."""

    name: str
    value: float
    lowest: float
    highest: float
    # Processor time of the broker for each published message.
    cpu_us: float
    lost: int
    out_of_order: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a contender has no results."""

    name: str
    text: str


def run_rounds(
    load: Load, program: Path, *, seconds: float, rounds: int
) -> list[Summary | Failure]:
    """Run the rounds of all contenders in turns, A B C A B C; return their results.

    All brokers keep running meanwhile, and the others are idle.
    """
    failures: dict[str, Failure] = {}
    samples: dict[str, list[tuple[Result, float]]] = {c.name: [] for c in load.contenders}
    with scratch() as place, ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for contender in load.contenders:
            try:
                peers[contender.name] = _start(stack, contender, place.resolve())
            except (PeerError, RefusedError) as exc:
                failures[contender.name] = Failure(contender.name, str(exc))
        for number in range(rounds):
            for name, peer in peers.items():
                if name in failures:
                    continue
                before = peer.cpu_seconds()
                try:
                    result = run_load(program, peer.port, seconds=seconds, options=load.options)
                except GeneratorError as exc:
                    failures[name] = Failure(name, str(exc))
                    continue
                cpu_us = (peer.cpu_seconds() - before) * 1e6 / max(1, result.sent)
                samples[name].append((result, cpu_us))
                _progress(load, number, name, result)
    return [
        failures.get(c.name) or _summary(load, c.name, samples[c.name]) for c in load.contenders
    ]


def _start(stack: ExitStack, contender: Contender, place: Path) -> Peer:
    directory = place / contender.name.replace(" ", "-").replace(",", "")
    directory.mkdir()
    peer = stack.enter_context(contender.start(directory))
    if contender.subscriptions:
        stack.enter_context(subscribed(peer.port, other_filters(contender.subscriptions)))
    return peer


def _summary(load: Load, name: str, samples: list[tuple[Result, float]]) -> Summary:
    values = [float(getattr(result, load.measure)) for result, _ in samples]
    return Summary(
        name=name,
        value=median(values),
        lowest=min(values),
        highest=max(values),
        cpu_us=median(cpu_us for _, cpu_us in samples),
        lost=sum(result.lost for result, _ in samples),
        out_of_order=sum(result.out_of_order for result, _ in samples),
        duplicates=sum(result.duplicates for result, _ in samples),
    )


def _progress(load: Load, number: int, name: str, result: Result) -> None:
    value = getattr(result, load.measure)
    text = f"{load.name}, round {number + 1}: {name}: {value:,.0f} {load.measure}"
    print(text, file=sys.stderr, flush=True)
