"""The command as people run it: in processes of its own, on a real disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone.version import __version__, form

COMMAND = [sys.executable, "-m", "siltstone.cli.main"]
DEADLINE_SECONDS = 30
# The children run elsewhere, where a relative path to the package leads nowhere.
HOME = str(Path(siltstone.__file__).parent.parent)
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([HOME, *sys.path])}


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Runner:
    """Runs the command on one data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"

    def arguments(self, *args: str) -> list[str]:
        return [*COMMAND, *args, "--data", str(self.data)]

    def run(self, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.arguments(*args),
            input=stdin,
            capture_output=True,
            check=False,
            cwd=self.directory,
            env=ENVIRONMENT,
            timeout=DEADLINE_SECONDS,
        )

    def output(self, *args: str, stdin: bytes = b"") -> bytes:
        """Run a command that must do well."""
        done = self.run(*args, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        return done.stdout

    def document(self, *args: str, stdin: bytes = b"") -> Any:
        return json.loads(self.output(*args, "--json", stdin=stdin))

    def run_in_shell(self, script: str, *args: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command by a script, to which it is "$@"."""
        return subprocess.run(
            ["/bin/sh", "-c", script, "sh", *self.arguments(*args)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            cwd=self.directory,
            env=ENVIRONMENT,
            timeout=DEADLINE_SECONDS,
        )

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.arguments(*args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env=ENVIRONMENT,
            # A test run in the background ignores interrupts, and so would its children.
            preexec_fn=_heed_interrupts,  # noqa: PLW1509 - no other thread runs here
        )


@pytest.fixture
def cli(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def create(cli: Runner, rows: int = 0, *, shards: int = 1) -> None:
    """Create a database with rows; by the library, for a process takes its time to begin."""
    settings = siltstone.DatabaseSettings(segment_bytes=1 << 22, shards=shards)
    with siltstone.open(cli.data) as store:
        append(store.create("metrics", settings), range(rows))


def append(database: siltstone.Database, numbers: range) -> None:
    rows = [siltstone.Row(f"room/{n % 30}/t", b"%d" % n, f"p{n % 5}") for n in numbers]
    database.append(rows).wait()


def stored(cli: Runner) -> list[int]:
    """Return the values that are stored, in order of time."""
    with siltstone.open(cli.data, read_only=True) as store:
        batches = store.database("metrics").read(columns=["value"])
        return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def json_lines(numbers: range) -> bytes:
    return b"".join(
        b'{"topic":"room/%d/t","value":%d,"publisher":"p%d"}\n' % (n % 30, n, n % 5)
        for n in numbers
    )


def values(output: bytes) -> list[int]:
    return [int(json.loads(line)["value"]) for line in output.splitlines()]


def until(happens: Callable[[], bool]) -> None:
    """Ask again and again, until it is so."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not happens():
        assert time.monotonic() < deadline, "it never happened"


def lines_of(stream: IO[bytes] | None) -> Iterator[bytes]:
    assert stream is not None
    return iter(stream.readline, b"")


def test_the_version_says_which_form_runs() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, check=True, env=ENVIRONMENT)
    assert done.stdout.decode() == f"siltstone {__version__} ({form()})\n"


def test_a_database_lives_from_create_to_drop(cli: Runner) -> None:
    options = ("--threshold", "100,3", "--shards", "2", "--segment-bytes", "1MiB")
    cli.output("db", "create", "metrics", *options)
    source = cli.directory / "rows.csv"
    source.write_text("topic,value\n" + "".join(f"room/{n % 30}/t,{n}\n" for n in range(1000)))
    assert cli.document("append", "metrics", str(source), "--batch", "64")["rows"] == 1000
    assert stored(cli) == list(range(1000))
    assert values(cli.output("read", "metrics", "--filter", "room/7/t", "--json")) == list(
        range(7, 1000, 30)
    )
    assert [slab["slab"] for slab in cli.document("seal", "metrics")] == [
        "0/1",
        "1/1",
        "0/2",
        "1/2",
    ]
    patterns = {each["pattern"]: each["rows"] for each in cli.document("structure", "metrics")}
    assert (sum(patterns.values()), "room/+/t" in patterns) == (1000, True)
    cli.output("drop", "metrics", "0/1", "--yes")
    cli.output("drop", "metrics", "1/1", "--yes")
    assert [each["rows"] for each in cli.document("db", "list")] == [0]
    cli.output("db", "drop", "metrics", "--yes")
    assert cli.document("db", "list") == []


def test_every_format_holds_the_same_rows(cli: Runner) -> None:
    create(cli, 500)
    expected = [str(n).encode() for n in range(500)]
    piped = cli.output("read", "metrics", "--format", "arrow")
    with pa.ipc.open_stream(piped) as reader:
        table = reader.read_all()
    assert (table.schema, table["value"].to_pylist()) == (siltstone.SCHEMA, expected)
    for form_name in ("arrow", "parquet", "jsonl", "table"):
        file = str(cli.directory / form_name)
        done = cli.run("read", "metrics", "--format", form_name, "--output", file)
        assert (done.returncode, done.stdout) == (0, b"")
        assert done.stderr.decode() == f"siltstone: wrote 500 rows to {file}\n"
    assert (cli.directory / "arrow").read_bytes() == piped
    assert pq.read_table(cli.directory / "parquet").equals(table)
    assert values((cli.directory / "jsonl").read_bytes()) == list(range(500))
    lines = (cli.directory / "table").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["value", *map(str, range(500))]


def test_what_was_read_can_be_appended_again(cli: Runner) -> None:
    create(cli)
    odd = (
        b'{"topic":"a","value_base64":"AP8=","qos":2,"retain":true,"properties_base64":"AQI="}\n'
        b'{"topic":"b/c","value":{"t":[1,"\xc3\xbc"]},"publisher":"p"}\n'
    )
    cli.output("append", "metrics", stdin=odd)
    cli.output("append", "metrics", stdin=cli.output("read", "metrics", "--json"))
    kept = ("--columns", "topic,publisher,qos,retain,properties,value", "--json")
    lines = cli.output("read", "metrics", *kept).splitlines()
    assert (len(lines), lines[:2]) == (4, lines[2:])


@pytest.mark.parametrize(
    ("variables", "place"), [({"SILTSTONE_DATA": "named"}, "named"), ({}, "siltstone-data")]
)
def test_the_directory_comes_from_the_environment_or_is_beside_us(
    tmp_path: Path, variables: dict[str, str], place: str
) -> None:
    environment = {
        name: value for name, value in ENVIRONMENT.items() if name != "SILTSTONE_DATA"
    } | variables
    subprocess.run(
        [*COMMAND, "db", "create", "x"],
        check=True,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    assert (tmp_path / place / "data" / "x").is_dir()


def test_a_second_writer_is_refused_in_one_sentence_and_readers_are_not(cli: Runner) -> None:
    with siltstone.open(cli.data) as store:
        database = store.create("metrics")
        append(database, range(3))
        done = cli.run("append", "metrics", stdin=json_lines(range(1)))
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
        assert b"is in use by process %d (" % os.getpid() in done.stderr
        assert values(cli.output("read", "metrics", "--json")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ("append", "metrics", "missing.csv"),
            "cannot open missing.csv: no such file or directory",
        ),
        (
            ("append", "metrics", "."),
            "the suffix of '.' names no known format; pass --format jsonl or csv",
        ),
        (("append", "metrics", ".", "--format", "csv"), "cannot open .: is a directory"),
        (
            ("read", "metrics", "--json", "--output", "no/such/place"),
            "cannot open no/such/place: directory no/such does not exist",
        ),
        (("db", "create", "../evil"), "the name of a database must have 1 to 100 letters"),
    ],
)
def test_wrong_input_ends_in_one_sentence(
    cli: Runner, args: tuple[str, ...], sentence: str
) -> None:
    create(cli)
    done = cli.run(*args)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.decode().startswith(f"siltstone: {sentence}")


def test_a_bad_line_of_a_csv_file_ends_in_one_sentence(cli: Runner) -> None:
    create(cli)
    (cli.directory / "rows.csv").write_text("topic,value,qos\na,1,\na,2,7\na,3,\n")
    done = cli.run("append", "metrics", "rows.csv", "--batch", "1")
    assert (done.returncode, done.stdout, done.stderr.decode()) == (
        2,
        b"",
        (
            "siltstone: line 3: qos must be 0, 1 or 2, got '7'; "
            "correct the line, or pass --skip-bad; 1 row before it was stored\n"
        ),
    )
    assert stored(cli) == [1]


def test_a_reader_that_goes_away_is_no_error(cli: Runner) -> None:
    create(cli, 50_000)
    for output in ("jsonl", "table", "arrow"):
        with cli.start("read", "metrics", "--format", output) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert len(process.stdout.read(100)) == 100
            process.stdout.close()
            assert (process.wait(DEADLINE_SECONDS), process.stderr.read()) == (1, b"")


def test_following_shows_each_row_once_and_in_order_over_generations(cli: Runner) -> None:
    rows = 3000
    with siltstone.open(cli.data) as store:
        settings = siltstone.DatabaseSettings(thresholds=(10, 3), segment_bytes=1 << 20)
        database = store.create("metrics", settings)
        process = cli.start("read", "metrics", "--follow", "--json", "--limit", str(rows))
        for start in range(0, rows, 50):
            append(database, range(start, start + 50))
            if start % 500 == 450:
                database.seal()
        output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, errors) == (0, b"")
    assert values(output) == list(range(rows))


def test_following_ends_quietly_when_interrupted(cli: Runner) -> None:
    create(cli, 3)
    process = cli.start("read", "metrics", "--follow", "--json")
    lines = lines_of(process.stdout)
    assert [json.loads(next(lines))["value"] for _ in range(3)] == ["0", "1", "2"]
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, output, errors) == (130, b"", b"")


def test_a_load_that_was_killed_goes_on_where_it_stopped(cli: Runner) -> None:
    create(cli, shards=2)
    args = ("append", "metrics", "--batch", "100", "--producer", "loader")
    process = cli.start(*args)
    assert process.stdin is not None
    process.stdin.write(json_lines(range(5_000)))
    process.stdin.flush()
    with siltstone.open(cli.data, read_only=True) as store:
        reader = store.database("metrics")
        until(lambda: reader.count() >= 2_000)
    process.kill()
    process.communicate()
    again = cli.run(*args, "--json", stdin=json_lines(range(10_000)))
    assert again.returncode == 0
    document = json.loads(again.stdout)
    assert (document["rows"], document["duplicates"] >= 1_900) == (10_000, True)
    assert sorted(stored(cli)) == list(range(10_000))


def test_an_interrupted_load_says_how_far_it_came(cli: Runner) -> None:
    create(cli)
    process = cli.start("append", "metrics", "--batch", "100")
    assert process.stdin is not None
    process.stdin.write(json_lines(range(1_050)))
    process.stdin.flush()
    with siltstone.open(cli.data, read_only=True) as store:
        reader = store.database("metrics")
        until(lambda: reader.count() == 1_000)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, output, errors.decode()) == (
        130,
        b"",
        "siltstone: stopped; 1,000 rows were stored\n",
    )
    assert stored(cli) == list(range(1_000))


def test_damage_is_found_then_mended_and_then_gone(cli: Runner) -> None:
    create(cli, 1_000)
    with siltstone.open(cli.data) as store:
        store.database("metrics").seal()
    assert cli.document("verify", "--all")[0]["rows"] == 1_000
    (segment,) = (cli.data / "data/metrics/0/1").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(b"997", 4096)] ^= 1
    segment.write_bytes(content)
    found = cli.run("verify", "metrics", "--json")
    assert (found.returncode, found.stderr) == (1, b"")
    (report,) = json.loads(found.stdout)
    assert {finding["path"] for finding in report["findings"]} == {str(segment)}
    assert cli.run("verify", "metrics", "--repair").returncode == 1
    assert list((cli.data / "quarantine").iterdir()) != []
    assert cli.document("verify", "metrics")[0]["damaged"] is False


@pytest.mark.parametrize(
    "args", [("db", "list"), ("read", "metrics", "--json"), ("read", "metrics")], ids=" ".join
)
def test_an_output_that_cannot_be_written_is_told_in_a_sentence(
    cli: Runner, args: tuple[str, ...]
) -> None:
    create(cli, 2000)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            cli.arguments(*args),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env=ENVIRONMENT,
            timeout=DEADLINE_SECONDS,
        )
    assert (done.returncode, done.stderr) == (
        3,
        b"siltstone: cannot write the output: no space left on device\n",
    )


OUTPUT_CLOSED = "siltstone: cannot write the output: standard output is closed\n"
INPUT_CLOSED = "siltstone: standard input is closed; redirect a file or a pipe to it\n"


@pytest.mark.parametrize(
    ("closed", "args", "status", "sentence"),
    [
        (">&-", ("db", "list"), 3, OUTPUT_CLOSED),
        (">&-", ("read", "metrics"), 3, OUTPUT_CLOSED),
        (">&-", ("read", "metrics", "--json"), 3, OUTPUT_CLOSED),
        (">&-", ("read", "metrics", "--format", "arrow"), 3, OUTPUT_CLOSED),
        (">&-", ("read", "metrics", "--help"), 3, OUTPUT_CLOSED),
        ("<&-", ("append", "metrics"), 2, INPUT_CLOSED),
        (
            "<&-",
            ("db", "drop", "metrics"),
            2,
            "siltstone: database 'metrics' has 3 rows; pass --yes to drop it without a question\n",
        ),
        (">&- 2>&-", ("db", "list"), 3, ""),
        ("<&- >&- 2>&-", ("append", "metrics"), 2, ""),
        ("2>&-", ("db", "list", "--frob"), 2, ""),
    ],
)
def test_a_stream_that_is_closed_ends_in_a_sentence_and_a_status(
    cli: Runner, closed: str, args: tuple[str, ...], status: int, sentence: str
) -> None:
    create(cli, 3)
    done = cli.run_in_shell(f'exec "$@" {closed}', *args)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (status, b"", sentence)


def test_no_file_of_the_store_takes_the_number_of_a_stream_that_is_closed(cli: Runner) -> None:
    create(cli)
    source = cli.directory / "rows.jsonl"
    source.write_bytes(json_lines(range(100)))
    done = cli.run_in_shell('exec "$@" <&- >&- 2>&-', "append", "metrics", str(source))
    assert done.returncode == 3
    assert stored(cli) == list(range(100))
    assert cli.document("verify", "--all")[0]["damaged"] is False


def test_a_command_opens_as_many_files_as_it_may(cli: Runner) -> None:
    with siltstone.open(cli.data) as store:
        database = store.create("metrics", siltstone.DatabaseSettings(segment_bytes=1 << 16))
        for number in range(75):
            append(database, range(number, number + 1))
            database.seal()
    done = cli.run_in_shell('ulimit -S -n 40; exec "$@"', "read", "metrics", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert values(done.stdout) == list(range(75))


@pytest.mark.parametrize("files_max", [64, 65])
def test_a_database_for_which_there_are_too_few_files_is_not_left_behind_untold(
    cli: Runner, files_max: int
) -> None:
    options = ("--shards", "200", "--segment-bytes", "64KiB")
    script = f'ulimit -n {files_max}; exec "$@"'
    done = cli.run_in_shell(script, "db", "create", "metrics", *options)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (3, b"", 1)
    assert (
        b"too many open files, raise the limit (ulimit -n, LimitNOFILE) or lower "
        b"limits.connections_max: path" in done.stderr
    )
    # Whether a file is left to open, to drop it by, depends on where the last one was taken.
    is_left = cli.document("db", "list") != []
    assert is_left == (b"database 'metrics' may exist in part" in done.stderr)


# Says when it is being imported, and then takes for ever.
SLOW_PACKAGE = """
import threading
print("importing", flush=True)
threading.Event().wait()
"""


def test_an_interrupt_while_the_command_is_being_loaded_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "siltstone").mkdir()
    (tmp_path / "siltstone" / "__init__.py").write_text(SLOW_PACKAGE, "utf-8")
    command = Path(HOME) / "siltstone_command.py"
    (tmp_path / command.name).write_bytes(command.read_bytes())
    with subprocess.Popen(
        [sys.executable, "-c", "import siltstone_command; siltstone_command.run()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 - no other thread runs here
    ) as loading:
        assert loading.stdout is not None
        assert loading.stdout.readline() == b"importing\n"
        loading.send_signal(signal.SIGINT)
        _, errors = loading.communicate(timeout=DEADLINE_SECONDS)
    assert (loading.returncode, errors) == (-signal.SIGINT, b"")


def test_the_command_that_is_installed_runs_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import siltstone_command; siltstone_command.run()", "--version"],
        capture_output=True,
        check=False,
        env=ENVIRONMENT,
        timeout=DEADLINE_SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, f"siltstone {__version__} ({form()})\n".encode())
