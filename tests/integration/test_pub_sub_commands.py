"""`siltstone pub` and `siltstone sub` as people run them, against a stock server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone
from tests.support.certificates import Authority
from tests.support.cutting_proxy import CuttingProxy
from tests.support.mosquitto import Mosquitto
from tests.support.peers import need_peer, peer_environment

COMMAND = [sys.executable, "-m", "siltstone.cli.main"]
DEADLINE_SECONDS = 40
HOME = str(Path(siltstone.__file__).parent.parent)
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([HOME, *sys.path])}
START = "; 'siltstone serve' starts a broker"
NUMBERS = [b"%d" % number for number in range(2000)]
LINES = b"".join(line + b"\n" for line in NUMBERS)


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    yield
    while started:
        process = started.pop()
        process.kill()
        process.communicate()


def start(*args: str, port: int, **options: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*COMMAND, *args, "-h", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT | options,
        # A test run in the background ignores interrupts, and so would its children.
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 - no other thread forks here
    )
    started.append(process)
    return process


def finish(process: subprocess.Popen[bytes], stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Wait for the end; return status, output and notes."""
    out, err = process.communicate(stdin, timeout=DEADLINE_SECONDS)
    return process.returncode, out, err.decode()


def run(*args: str, port: int, stdin: bytes = b"", **options: str) -> tuple[int, bytes, str]:
    return finish(start(*args, port=port, **options), stdin)


def subscribed(*args: str, port: int) -> subprocess.Popen[bytes]:
    """Start a subscriber and return when the server has its subscription.

    The server then sends it a retained message, which is the first line that it prints.
    """
    process = start("sub", "-t", "ready", *args, port=port)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as made:
        made.retain(b"ready", b"ready")
        yield made


def lines_to(end: bytes, process: subprocess.Popen[bytes]) -> list[bytes]:
    """Return what a process prints before a line."""
    assert process.stdout is not None
    return [line.rstrip() for line in iter(process.stdout.readline, end + b"\n")]


@pytest.mark.parametrize(("version", "qos"), [("5", "0"), ("5", "1"), ("5", "2"), ("3.1.1", "2")])
def test_lines_arrive_as_they_were_sent(server: Mosquitto, version: str, qos: str) -> None:
    common = ("-V", version, "-q", qos)
    sub = subscribed("-t", "x/#", "-C", "2001", *common, port=server.port)
    assert run("pub", "-t", "x/y", "-l", *common, port=server.port, stdin=LINES) == (0, b"", "")
    assert finish(sub) == (0, LINES, "")


def test_a_large_binary_payload_arrives_byte_by_byte(server: Mosquitto, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 20_000
    file = tmp_path / "payload"
    file.write_bytes(payload)
    sub = subscribed("-t", "x", "-C", "2", port=server.port)
    assert run("pub", "-t", "x", "-f", str(file), "-q", "1", port=server.port)[0] == 0
    assert finish(sub) == (0, payload + b"\n", "")


def test_properties_and_flags_arrive(server: Mosquitto) -> None:
    properties = ("content-type=text", "response-topic=r", "user:k=v")
    options = [word for item in properties for word in ("-D", item)]
    assert run("pub", "-t", "x", "-m", "m", "-r", "-q", "1", *options, port=server.port)[0] == 0
    shape = ("-F", "%t %p q%q r%r %C %R %P")
    status, out, err = run("sub", "-t", "x", "-q", "1", "-C", "1", *shape, port=server.port)
    assert (status, out, err) == (0, b"x m q1 r1 text r k:v\n", "")
    # An empty retained message clears the one before.
    assert run("pub", "-t", "x", "-n", "-r", port=server.port)[0] == 0
    assert run("sub", "-t", "x", "-W", "0.2", port=server.port) == (0, b"", "")


def test_mosquitto_s_clients_understand_ours(server: Mosquitto) -> None:
    publish, subscribe = need_peer("mosquitto_pub"), need_peer("mosquitto_sub")
    sub = subscribed("-t", "x", "-C", "2", "-q", "2", port=server.port)
    subprocess.run(
        [publish, "-p", str(server.port), "-t", "x", "-m", "theirs", "-q", "2"],
        env=peer_environment(),
        check=True,
    )
    assert finish(sub) == (0, b"theirs\n", "")
    assert run("pub", "-t", "x", "-m", "ours", "-r", port=server.port)[0] == 0
    done = subprocess.run(
        [subscribe, "-p", str(server.port), "-t", "x", "-C", "1"],
        env=peer_environment(),
        check=True,
        capture_output=True,
    )
    assert done.stdout == b"ours\n"


def test_a_kept_session_has_what_came_meanwhile(server: Mosquitto) -> None:
    kept = ("-t", "x", "-q", "1", "-c", "-i", "me", "-x", "1h")
    first = subscribed(*kept, "-C", "2", port=server.port)
    assert run("pub", "-t", "x", "-l", "-q", "1", port=server.port, stdin=b"1\n2\n3\n")[0] == 0
    assert finish(first) == (0, b"1\n", "")
    # What was not printed was not acknowledged.
    assert run("sub", *kept, "-C", "2", port=server.port) == (0, b"2\n3\n", "")
    assert run("sub", "-U", "x", "-c", "-i", "me", port=server.port) == (0, b"", "")
    assert run("pub", "-t", "x", "-m", "4", "-q", "1", port=server.port)[0] == 0
    gone = run("sub", "-t", "other", "-c", "-i", "me", "-W", "0.2", port=server.port)
    assert gone == (0, b"", "")


@pytest.mark.parametrize(("version", "qos"), [("5", "2"), ("3.1.1", "1")])
def test_a_publisher_comes_back_and_loses_nothing(
    server: Mosquitto, version: str, qos: str
) -> None:
    sub = subscribed("-t", "x", "-q", "2", port=server.port)
    # 3.1.1 comes back to a session only if it keeps one for good.
    kept = ("-c",) if version == "3.1.1" else ()
    common = ("-t", "x", "-l", "-q", qos, "-V", version, "--reconnect", "-i", "me", *kept)
    with CuttingProxy(server.port, cuts=3, after_bytes=7_000) as proxy:
        status, _, notes = run("pub", *common, port=proxy.port, stdin=LINES)
        assert (status, proxy.cuts_left) == (0, 0)
    assert notes.count("connecting again") == notes.count("connected again") == 3
    assert run("pub", "-t", "x", "-q", "1", "-m", "end", port=server.port)[0] == 0
    arrived = lines_to(b"end", sub)
    sub.send_signal(signal.SIGINT)
    assert finish(sub) == (130, b"", "")
    if qos == "2":
        assert arrived == NUMBERS
    else:
        assert list(dict.fromkeys(arrived)) == NUMBERS


@pytest.mark.parametrize("qos", ["1", "2"])
def test_a_subscriber_comes_back_and_misses_nothing(server: Mosquitto, qos: str) -> None:
    with CuttingProxy(server.port, cuts=3, after_bytes=7_000) as proxy:
        common = ("-t", "x", "-q", qos)
        sub = subscribed(*common, "--reconnect", port=proxy.port)
        assert run("pub", *common, "-l", port=server.port, stdin=LINES) == (0, b"", "")
        assert run("pub", *common, "-m", "end", port=server.port)[0] == 0
        arrived = lines_to(b"end", sub)
        sub.send_signal(signal.SIGINT)
        status, _, notes = finish(sub)
        assert (status, proxy.cuts_left) == (130, 0)
    assert notes.count("connecting again") == notes.count("connected again") == 3
    if qos == "2":
        assert arrived == NUMBERS
    else:
        assert list(dict.fromkeys(arrived)) == NUMBERS


def test_both_come_back_to_a_server_that_was_killed(server: Mosquitto) -> None:
    # The last message is retained: the subscriber gets it whenever it is back.
    sub = subscribed("-t", "x", "-q", "1", "--reconnect", port=server.port)
    assert sub.stdout is not None
    pub = start("pub", "-t", "x", "-l", "-r", "-q", "1", "--reconnect", "-v", port=server.port)
    assert pub.stdin is not None
    pub.stdin.write(b"before\n")
    pub.stdin.flush()
    assert sub.stdout.readline() == b"before\n"
    server.kill()
    pub.stdin.write(b"meanwhile\nafter\n")
    pub.stdin.flush()
    server.start()
    status, out, notes = finish(pub)
    assert (status, out.startswith(b"3 messages in ")) == (0, True)
    assert notes.endswith("connecting again\nsiltstone: connected again\n")
    # The first one comes again if the server was killed before the publisher had its PUBACK.
    for line in iter(sub.stdout.readline, b"after\n"):
        assert line in {b"before\n", b"meanwhile\n", b"ready\n"}
    sub.send_signal(signal.SIGTERM)
    assert finish(sub)[0] == 143


def test_a_server_that_stays_away_is_given_up(server: Mosquitto) -> None:
    server.kill()
    options = ("--reconnect", "--reconnect-timeout", "0.3")
    status, out, notes = run("pub", "-t", "x", "-m", "y", *options, port=server.port)
    where = f"siltstone: cannot connect to 127.0.0.1:{server.port}: connection refused"
    assert (status, out, notes) == (3, b"", f"{where}; connecting again\n{where}{START}\n")


def test_a_killed_client_s_will_is_published(server: Mosquitto) -> None:
    heir = subscribed("-t", "will", "-C", "2", port=server.port)
    options = ("--will-topic", "will", "--will-message", "gone", "--will-qos", "1")
    doomed = subscribed("-t", "x", *options, port=server.port)
    # One that leaves of its own accord has no will.
    leaving = subscribed("-t", "x", *options, port=server.port)
    leaving.send_signal(signal.SIGINT)
    assert finish(leaving)[0] == 130
    doomed.kill()
    finish(doomed)
    assert finish(heir) == (0, b"gone\n", "")


def test_an_interrupt_ends_a_publisher_that_waits_for_lines(server: Mosquitto) -> None:
    sub = subscribed("-t", "x", "-C", "2", port=server.port)
    pub = start("pub", "-t", "x", "-l", port=server.port)
    assert pub.stdin is not None
    pub.stdin.write(b"first\nunfinished")
    pub.stdin.flush()
    assert finish(sub) == (0, b"first\n", "")
    pub.send_signal(signal.SIGINT)
    # Its thread is still in the middle of a read.
    assert pub.wait(DEADLINE_SECONDS) == 130
    assert pub.stderr is not None
    assert pub.stderr.read() == b""


def test_a_reader_that_goes_away_ends_it_quietly(server: Mosquitto) -> None:
    sub = subscribed("-t", "x", port=server.port)
    assert sub.stdout is not None
    sub.stdout.close()
    assert run("pub", "-t", "x", "-m", "y", port=server.port)[0] == 0
    assert sub.stderr is not None
    assert (sub.wait(DEADLINE_SECONDS), sub.stderr.read()) == (1, b"")
    finish(sub)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_stranger_is_refused_by_name_of_the_reason(tmp_path: Path, version: str) -> None:
    with Mosquitto(tmp_path, "allow_anonymous false") as server:
        for command in (("pub", "-n"), ("sub",)):
            status, out, notes = run(*command, "-t", "x", "-V", version, port=server.port)
            assert (status, out, notes) == (
                3,
                b"",
                (
                    "siltstone: the server refused the connection: not authorized (0x87); "
                    "no user name was sent (--username)\n"
                ),
            )


def test_a_password_comes_from_environment_or_file(tmp_path: Path) -> None:
    name = need_peer("mosquitto_passwd")
    users = tmp_path / "users"
    command = [name, "-b", "-c", str(users), "me", "secret"]
    subprocess.run(command, env=peer_environment(), check=True)
    users.chmod(0o644)
    file = tmp_path / "password"
    file.write_text("secret\n")
    with Mosquitto(tmp_path, f"password_file {users}") as server:
        common = ("pub", "-t", "x", "-n", "-u", "me")
        assert run(*common, port=server.port)[0] == 3
        assert run(*common, port=server.port, SILTSTONE_PASSWORD="secret")[0] == 0  # noqa: S106
        assert run(*common, "--password-file", str(file), port=server.port)[0] == 0


def test_tls_trusts_whom_it_is_told_and_shows_its_certificate(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    files, mine = authority.server(), authority.client("me")
    listener = (
        f"certfile {files.certificate}",
        f"keyfile {files.key}",
        f"cafile {authority.file}",
        "require_certificate true",
    )
    with Mosquitto(tmp_path, "allow_anonymous true", listener=listener) as server:
        common = ("pub", "-t", "x", "-m", "y", "-q", "1")
        known = ("--cert", mine.certificate, "--key", mine.key)
        good = run(*common, "--cafile", authority.file, *known, port=server.port)
        assert good == (0, b"", "")
        bad = run(*common, "--cafile", other.file, *known, port=server.port)
        assert (bad[0], bad[2].count("\n"), "certificate" in bad[2]) == (3, 1, True)
        nameless = run(*common, "--cafile", authority.file, port=server.port)
        assert (nameless[0], nameless[2].count("\n")) == (3, 1)


def test_a_socket_file_is_a_server_too(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Mosquitto(tmp_path, "allow_anonymous true", f"listener 0 {path}"):
        done = subprocess.run(
            [*COMMAND, "pub", "--unix", str(path), "-t", "x", "-m", "y", "-q", "1"],
            check=False,
            capture_output=True,
            env=ENVIRONMENT,
            timeout=DEADLINE_SECONDS,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
