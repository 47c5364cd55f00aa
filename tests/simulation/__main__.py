"""A long run of the simulation: `python -m tests.simulation --first 1 --runs 20000`."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.world import Violation, World

REPORT_RUNS = 1_000


def main() -> int:
    options = argparse.ArgumentParser(description="Run the simulation of replicated shards.")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--runs", type=int, default=20_000, help="how many seeds")
    chosen = options.parse_args()
    simulated_us = steps = 0
    for run in range(1, chosen.runs + 1):
        world = World(chosen.first + run - 1)
        try:
            world.run()
        except Violation as exc:
            sys.stdout.write(f"{exc}\n{world.plan}\n" + "\n".join(world.events) + "\n")
            return 1
        simulated_us += world.now_us
        steps += world.steps
        if run % REPORT_RUNS == 0 or run == chosen.runs:
            hours = simulated_us / 3.6e9
            sys.stdout.write(f"{run} runs, {steps} steps, {hours:.1f} simulated hours\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
