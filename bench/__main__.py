"""Print every table: `python -m bench [--full]`."""

from __future__ import annotations

import argparse

from rich.console import Console

from bench import appending, archive, feeds, footprint, reading, scale, transactions
from siltstone.version import __version__, form


def main() -> None:
    """Run all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="larger data, more minutes")
    full = parser.parse_args().full
    console = Console()
    console.print(f"siltstone {__version__} ({form()})")
    console.print(appending.run())
    console.print(reading.run())
    for table in feeds.run():
        console.print(table)
    console.print(footprint.run(full=full))
    console.print(scale.run(full=full))
    console.print(transactions.throughput())
    console.print(transactions.conflicts())
    console.print(archive.run(sessions=archive.SESSIONS if full else archive.SESSIONS // 5))


if __name__ == "__main__":
    main()
