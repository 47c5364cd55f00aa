"""`siltstone append`: load rows from a file or stdin."""

from __future__ import annotations

import signal
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from siltstone.cli.management import broker_or_here
from siltstone.cli.opening import note_recovery, open_reading, open_writing
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Name
from siltstone.cli.output.output import counted, note, say, show_json, were
from siltstone.cli.output.progress import progress
from siltstone.cli.output.streams import standard_input
from siltstone.cli.store.records import BadLines, gather, read_csv, read_json_lines
from siltstone.errors import UsageError
from siltstone.manage.rows import AppendRows, pack
from siltstone.manage.running import RunningBroker
from siltstone.manage.verbs import VERBS
from siltstone.store.database import Database, Durability
from siltstone.store.log.write.partition import Columns
from siltstone.store.writer.ticket import Ticket

# The number of groups that are appended at the same time: enough to fill the next flush during a
# sync.
_TICKETS_MAX: Final = 8


class InputFormat(Enum):
    """The format of the input."""

    JSONL = "jsonl"
    CSV = "csv"


class DurabilityChoice(Enum):
    """The events that an acknowledged row survives."""

    SYNCED = "synced"
    WRITTEN = "written"
    NONE = "none"


_SUFFIXES: Final = {
    ".jsonl": InputFormat.JSONL,
    ".ndjson": InputFormat.JSONL,
    ".json": InputFormat.JSONL,
    ".csv": InputFormat.CSV,
}


@dataclass(slots=True)
class LoadProgress:
    """The progress of a load: the acknowledged rows, and those of them that were stored before."""

    rows: int = 0
    duplicates: int = 0


def guess_format(name: str) -> InputFormat:
    """Return the format for the name of a file; stdin is JSON lines. Raises: UsageError."""
    if name == "-":
        return InputFormat.JSONL
    found = _SUFFIXES.get(Path(name).suffix.lower())
    if found is None:
        raise UsageError(
            f"the suffix of {name!r} names no known format; pass --format jsonl or csv"
        )
    return found


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of an append that a broker has made, as a ticket that is done."""

    duplicate: bool
    error: Exception | None = None
    done: bool = True

    def wait(self) -> Answered:
        """Return at once."""
        return self


class BrokerTarget:
    """A database of a running broker, as far as a load needs it."""

    def __init__(self, broker: RunningBroker, name: str) -> None:
        self._broker = broker
        self._name = name

    def append(
        self, columns: Columns, *, durability: Durability, producer: tuple[str, int] | None
    ) -> Answered:
        """Append rows. With durability `none`, wait until they are written: a row that is refused
        must be reported.
        """
        request = AppendRows(
            database=self._name,
            durability="written" if durability == "none" else durability,
            producer=None if producer is None else producer[0],
            sequence=0 if producer is None else producer[1],
            payload=pack(columns),
        )
        return Answered(self._broker.run(VERBS["append"], request).duplicate)

    def sync(self) -> None:
        """Do nothing: all rows were stored when `append` returned."""


def load(
    database: Database | BrokerTarget,
    groups: Iterable[Columns],
    done: LoadProgress,
    *,
    durability: Durability,
    producer: str | None,
    progress: Callable[[int], None],
) -> None:
    """Append groups of rows in order, several at a time; `done` has the acknowledged rows.

    Raises: the errors of appends and of the groups, after the earlier groups are acknowledged.
    """
    waiting: deque[tuple[Ticket | Answered, int]] = deque()
    waits = durability != "none"
    try:
        for sequence, columns in enumerate(groups):
            identity = None
            if producer is not None:
                # The place and the contents identify a batch, so that other rows are never taken
                # for it.
                identity = (f"{producer}/{sequence}/{_fingerprint(columns)}", 0)
            with _uninterrupted():
                ticket = database.append(columns, durability=durability, producer=identity)
                waiting.append((ticket, columns.count))
            while waiting and (waiting[0][0].done or (waits and len(waiting) >= _TICKETS_MAX)):
                _settle(*waiting.popleft(), done)
            progress(done.rows)
    finally:
        if not waits:
            # The command did not wait for these rows, but it must fail if one was refused.
            database.sync()
        while waiting:
            _settle(*waiting.popleft(), done)
        progress(done.rows)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C: rows that were passed to the store must be counted."""
    noted: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if noted:
        raise KeyboardInterrupt


def _fingerprint(columns: Columns) -> str:
    digest = blake2b(digest_size=16)
    for column in (columns.topics, columns.values, columns.publisher, columns.properties):
        items = column if isinstance(column, list) else [column or b""]
        digest.update(array("Q", map(len, items)).tobytes())
        digest.update(b"".join(items))
    digest.update(repr(columns.flags).encode())
    return digest.hexdigest()


def _settle(ticket: Ticket | Answered, rows: int, done: LoadProgress) -> None:
    ticket.wait()
    if ticket.error is not None:
        raise ticket.error
    done.rows += rows
    done.duplicates += rows if ticket.duplicate else 0


Producer = Annotated[
    str | None,
    typer.Option(
        "--producer",
        metavar="ID",
        help="Name of this load. Run it again under its name to continue without duplicates.",
    ),
]


AppendDurability = Annotated[
    DurabilityChoice,
    typer.Option(
        "--durability",
        help="What a stored row survives: synced a power cut, written a crash of the process.",
    ),
]


def append(
    name: Name,
    source: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|-]", help="File with the rows.", show_default="standard input"
        ),
    ] = "-",
    input_format: Annotated[
        InputFormat | None,
        typer.Option(
            "--format", help="Input format. CSV needs a header line.", show_default="by suffix"
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", metavar="N", min=1, max=1_000_000, help="Number of rows per batch."
        ),
    ] = 10_000,
    durability: AppendDurability = DurabilityChoice.SYNCED,
    producer: Producer = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip invalid lines, and report their number.")
    ] = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Append rows from JSON lines or CSV to a database.

    Timestamps and serials in the input are ignored: each row gets new ones. If the broker is
    running, it appends the rows, and sends those of its own database to its subscribers.

    $ siltstone append sensors rows.jsonl
    $ siltstone append sensors --format csv < rows.csv
    $ siltstone append sensors rows.jsonl --producer load-1 --skip-bad
    """
    chosen = input_format or guess_format(source)
    bad = BadLines() if skip_bad else None
    done = LoadProgress()

    def append_to(database: Database | BrokerTarget) -> float:
        with (
            _opened(source) as file,
            closing(
                read_csv(file) if chosen is InputFormat.CSV else read_json_lines(file)
            ) as records,
        ):
            started = time.monotonic()
            with _told(done), _shown(file, source) as tell:
                load(
                    database,
                    gather(records, batch, bad),
                    done,
                    durability=durability.value,
                    producer=producer,
                    progress=tell,
                )
            return time.monotonic() - started

    def append_here() -> float:
        with open_writing(data) as store:
            database = store.database(name)
            note_recovery(database)
            return append_to(database)

    with open_reading(data) as store:
        # Refuse a misspelled name before the input is read, whether a broker runs or not.
        store.database(name)
    seconds = broker_or_here(
        data, lambda broker: append_to(BrokerTarget(broker, name)), append_here
    )
    _report(done, bad or BadLines(), seconds, json)


@contextmanager
def _told(done: LoadProgress) -> Iterator[None]:
    """Report how many rows were stored before an error."""
    try:
        yield
    except UsageError as exc:
        stored = f"{counted(done.rows, 'row')} before it {were(done.rows)} stored"
        raise UsageError(f"{exc}; {stored}") from exc
    except BaseException:
        note(f"stopped; {counted(done.rows, 'row')} {were(done.rows)} stored")
        raise


def _report(done: LoadProgress, bad: BadLines, seconds: float, json: bool) -> None:
    rate = done.rows / seconds if seconds else 0.0
    if json:
        show_json(
            {
                "rows": done.rows,
                "duplicates": done.duplicates,
                "bad_lines": bad.count,
                "seconds": round(seconds, 6),
                "rows_per_second": round(rate, 1),
            }
        )
    else:
        before = f", {done.duplicates:,} of them stored before" if done.duplicates else ""
        say(f"{counted(done.rows, 'row')} in {seconds:.2f} s, {rate:,.0f} rows/s{before}")
    for line in bad.first:
        note(str(line))
    if bad.count:
        note(f"skipped {counted(bad.count, 'invalid line')}")


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        yield standard_input()
    else:
        with Path(source).open("rb") as file:
            yield file


@contextmanager
def _shown(file: BinaryIO, source: str) -> Iterator[Callable[[int], None]]:
    """Show rows and rate and, for a file, the progress."""
    total = None if source == "-" else Path(source).stat().st_size
    with progress("Appending", total=total) as meter:

        def tell(rows: int) -> None:
            read = None if total is None or file.closed else file.tell()
            meter.tell(rows, done=total if read is None else read, total=total)

        yield tell
