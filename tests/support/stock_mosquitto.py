"""mosquitto_pub and mosquitto_sub: one process for each subscription and each publish."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from queue import Queue
from threading import Thread

from siltstone.mqtt.reason import Reason
from tests.support.peers import need_peer, peer_environment
from tests.support.stock_clients import (
    NO_EXTRAS,
    SESSION_SECONDS,
    WAIT_SECONDS,
    ClosedError,
    Extras,
    Login,
    Message,
    Target,
)

VERSIONS = {4: "311", 5: "5"}
# Topic, QoS, retain, content type, correlation, expiry, response topic, identifiers, user
# properties; the payload in hexadecimal.
FORMAT = r"MESSAGE\t%t\t%q\t%r\t%C\t%D\t%E\t%R\t%S\t%P\t%x"
SUBSCRIBED = re.compile(rb"Subscribed \(mid: \d+\): (\d+)")
CODES = {
    b"Not authorized.": Reason.NOT_AUTHORIZED,
    b"Quota exceeded.": Reason.QUOTA_EXCEEDED,
}


class MosquittoClient:
    """The two commands as one client; one process at a time receives its subscriptions."""

    def __init__(self, target: Target, version: int) -> None:
        self._sub = need_peer("mosquitto_sub")
        self._pub = need_peer("mosquitto_pub")
        self._target = target
        self._version = version
        self._login: Login | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: Thread | None = None
        self._lines: Queue[bytes] = Queue()
        self._early: list[Message] = []

    def connect(self, login: Login) -> bool:
        """Store the login: only a command connects."""
        self._login = login
        return not login.clean

    def subscribe(self, text: str, qos: int = 0, *, identifier: int = 0) -> int:
        assert self._login is not None
        self.close()
        self._lines = Queue()
        # It buffers its output to a pipe.
        command = [
            need_peer("stdbuf"),
            "-oL",
            self._sub,
            *self._options(),
            "-d",
            "-F",
            FORMAT,
            "-t",
            text,
            "-q",
            str(qos),
        ]
        command += ["-i", self._login.client_id]
        if not self._login.clean:
            command += ["-c"]
            command += ["-x", str(SESSION_SECONDS)] if self._version == 5 else []
        if identifier:
            command += ["-D", "subscribe", "subscription-identifier", str(identifier)]
        if will := self._login.will:
            command += ["--will-topic", will.topic, "--will-payload", will.payload.decode()]
            command += ["--will-qos", str(will.qos), *(["--will-retain"] if will.retain else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=peer_environment())
        self._reader = Thread(target=self._read, args=(self._process, self._lines))
        self._reader.start()
        while not (found := SUBSCRIBED.match(line := self._line())):
            # Queued messages of the session arrive before the answer.
            if line.startswith(b"MESSAGE"):
                self._early.append(_message(line))
        return int(found[1])

    def publish(self, message: Message) -> int:
        retain = ["-r"] if message.retain else []
        source = "-s" if message.payload else "-n"
        return self._publish(
            ["-t", message.topic, "-q", str(message.qos), source, *retain, *_flags(message.extras)],
            message.payload,
        )

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        lines = b"".join(payload + b"\n" for payload in payloads)
        assert self._publish(["-t", topic, "-q", str(qos), "-l"], lines) == 0

    def receive(self) -> Message:
        if self._early:
            return self._early.pop(0)
        while not (line := self._line()).startswith(b"MESSAGE"):
            pass
        return _message(line)

    def disconnect(self) -> None:
        """End it with a signal; in version 5 it then requests the publication of its will."""
        self._end(signal.SIGTERM)

    def drop(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._process.send_signal(number)
        self._process.wait(WAIT_SECONDS)
        self._reader.join()
        self._process = None

    def _publish(self, args: Sequence[str], stdin: bytes) -> int:
        done = subprocess.run(
            [self._pub, *self._options(), *args],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=WAIT_SECONDS,
            env=peer_environment(),
        )
        text = done.stderr.strip()
        if done.returncode:
            raise ClosedError(done.returncode)
        if not text:
            return 0
        return next(code for ending, code in CODES.items() if text.endswith(ending))

    def _options(self) -> list[str]:
        target = self._target
        options = ["-V", VERSIONS[self._version]]
        if target.kind == "unix":
            return [*options, "--unix", target.path]
        options += ["-h", "localhost", "-p", str(target.port)]
        if self._login is not None and self._login.username:
            options += ["-u", self._login.username, "-P", self._login.password]
        if target.is_secure:
            options += ["--cafile", target.authority]
        if target.files is not None:
            options += ["--cert", target.files.certificate, "--key", target.files.key]
        return options

    def _line(self) -> bytes:
        line = self._lines.get(timeout=WAIT_SECONDS)
        if not line:
            raise ClosedError
        return line

    @staticmethod
    def _read(process: subprocess.Popen[bytes], lines: Queue[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as stdout:
            for line in stdout:
                lines.put(line.rstrip(b"\n"))
        lines.put(b"")


def _flags(extras: Extras) -> list[str]:
    if extras == NO_EXTRAS:
        return []
    given = [("user-property", *pair) for pair in extras.user]
    single = {
        "content-type": extras.content_type,
        "response-topic": extras.response_topic,
        "correlation-data": extras.correlation.decode(),
        "message-expiry-interval": "" if extras.expiry is None else str(extras.expiry),
    }
    flags: list[str] = []
    for words in [*given, *((name, value) for name, value in single.items() if value)]:
        flags += ["-D", "publish", *words]
    return flags


def _message(line: bytes) -> Message:
    fields = line.decode().split("\t")
    _, topic, qos, retain, content, correlation, expiry, response, identifiers, user, data = fields
    # The pairs are separated by spaces, so the tests use none inside them.
    pairs = [pair.partition(":") for pair in user.split()]
    return Message(
        topic=topic,
        payload=bytes.fromhex(data),
        qos=int(qos),
        retain=retain == "1",
        extras=Extras(
            user=tuple((key, value) for key, _, value in pairs),
            content_type=content,
            response_topic=response,
            correlation=correlation.encode(),
            expiry=int(expiry) if expiry else None,
            identifiers=tuple(map(int, identifiers.split())),
        ),
    )
