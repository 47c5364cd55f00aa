"""The password file: one user per line, with optional blank lines and comments.

    # who may connect
    meter-7:$scrypt$ln=14,r=8,p=1$c2l4dGVlbiBieXRlcy4u$kN5j…

Invariants: the file contains no passwords. Each hash contains its cost, so that new hashes may cost
more. An unknown user takes as long as a wrong password with the most common cost of the file.

A correct password is cached for a while as a keyed digest, so that thousands of devices that
connect again at the same time do not cost one hash each. Key and digests belong to one
PasswordFile: they are lost when the file is read again. Any thread may verify.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from threading import Lock
from typing import Final, Self

from siltstone.clock import Clock
from siltstone.errors import UsageError

PASSWORD_SIZE_MAX: Final = 65_535
REMEMBERED_MAX: Final = 100_000
REMEMBERED_SECONDS: Final = 3_600.0

_SALT_BYTES: Final = 16
_DIGEST_BYTES: Final = 32
# A hash that needs more memory is an attack or an error.
_MEMORY_BYTES_MAX: Final = 1 << 30
_PARALLEL_MAX: Final = 64
_HASH: Final = re.compile(
    r"\$scrypt\$ln=([0-9]{1,2}),r=([0-9]{1,4}),p=([0-9]{1,3})"
    r"\$([A-Za-z0-9+/]{11,88})\$([A-Za-z0-9+/]{22,88})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one hash: memory 128 * block * 2**log_rounds bytes, and proportional time."""

    log_rounds: int = 14
    block: int = 8
    parallel: int = 1

    def memory_bytes(self) -> int:
        # OpenSSL computes the same number and compares it with `maxmem`.
        return 128 * self.block * ((1 << self.log_rounds) + self.parallel + 2)

    def is_sound(self) -> bool:
        """Return whether scrypt accepts these numbers, and the memory is within the limit."""
        return (
            1 <= self.log_rounds < 16 * self.block
            and 1 <= self.parallel <= _PARALLEL_MAX
            and self.memory_bytes() <= _MEMORY_BYTES_MAX
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """The hash of a password; `str` returns the text in the file, `parse` reads it."""

    cost: Cost
    salt: bytes
    digest: bytes

    @classmethod
    def make(cls, password: bytes, *, cost: Cost | None = None) -> Self:
        """Hash a password with a new random salt."""
        cost = cost or Cost()
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(cost=cost, salt=salt, digest=_scrypt(password, salt, cost, _DIGEST_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a hash; errors do not show it. Raises: UsageError."""
        found = _HASH.fullmatch(text)
        if found is None:
            raise UsageError(
                "the hash must have the form $scrypt$ln=…,r=…,p=…$salt$hash: write it with "
                "'siltstone passwd'"
            )
        cost = Cost(log_rounds=int(found[1]), block=int(found[2]), parallel=int(found[3]))
        if not cost.is_sound():
            raise UsageError(
                f"the cost of the hash is out of bounds, write it with 'siltstone passwd': "
                f"ln={cost.log_rounds} r={cost.block} p={cost.parallel}"
            )
        try:
            return cls(cost=cost, salt=_decoded(found[4]), digest=_decoded(found[5]))
        except binascii.Error as exc:
            raise UsageError("salt and hash must be base64 without padding") from exc

    def matches(self, password: bytes) -> bool:
        """Return whether this is the password; takes the time of one hash."""
        digest = _scrypt(password, self.salt, self.cost, len(self.digest))
        return hmac.compare_digest(digest, self.digest)

    def __str__(self) -> str:
        cost = self.cost
        return (
            f"$scrypt$ln={cost.log_rounds},r={cost.block},p={cost.parallel}"
            f"${_encoded(self.salt)}${_encoded(self.digest)}"
        )


class PasswordFile:
    """The users of the password file, as read once."""

    def __init__(self, hashes: Mapping[str, PasswordHash], clock: Clock) -> None:
        self._hashes = dict(hashes)
        self._clock = clock
        # Checked for an unknown user, so that the time does not tell whether a user exists.
        self._stranger = PasswordHash(
            cost=_usual_cost(self._hashes.values()),
            salt=secrets.token_bytes(_SALT_BYTES),
            digest=secrets.token_bytes(_DIGEST_BYTES),
        )
        self._key = secrets.token_bytes(32)
        self._mutex = Lock()
        # User -> digest of the correct password and its end of validity; oldest first.
        self._remembered: dict[str, tuple[bytes, float]] = {}

    def verify(self, user: str, password: bytes) -> bool:
        """Return whether this is the password of the user.

        Takes tens of milliseconds, during which the GIL is released.
        """
        if self.remembers(user, password):
            return True
        known = self._hashes.get(user)
        matched = (known or self._stranger).matches(password)
        if not matched or known is None:
            return False
        self._remember(user, password)
        return True

    def remembers(self, user: str, password: bytes) -> bool:
        """Return, in microseconds, whether this password was verified a short time ago."""
        with self._mutex:
            digest, until = self._remembered.get(user, (b"", 0.0))
        if not digest or self._clock.monotonic() >= until:
            return False
        return hmac.compare_digest(digest, self._digest(user, password))

    def _remember(self, user: str, password: bytes) -> None:
        until = self._clock.monotonic() + REMEMBERED_SECONDS
        digest = self._digest(user, password)
        with self._mutex:
            self._remembered.pop(user, None)
            if len(self._remembered) >= REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[user] = (digest, until)

    def _digest(self, user: str, password: bytes) -> bytes:
        # No name in the file contains a NUL, so no other pair gives the same bytes.
        return hashlib.blake2b(b"%s\0%s" % (user.encode(), password), key=self._key).digest()


def text_lines(data: bytes, path: PurePath) -> list[str]:
    """Split a text file into lines, without line ends.

    Raises: UsageError, which names the line that is not UTF-8.
    """
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1]:
        lines.pop()
    decoded = []
    for number, line in enumerate(lines, 1):
        try:
            decoded.append(line.decode().removesuffix("\r"))
        except UnicodeDecodeError as exc:
            raise UsageError(f"the line is not UTF-8: path={path} line={number}") from exc
    return decoded


def parse_passwords(lines: Sequence[str], path: PurePath) -> dict[str, PasswordHash]:
    """Return the users of a password file with their hashes, in the order of the file.

    Raises: UsageError, which names file and line.
    """
    hashes: dict[str, PasswordHash] = {}
    for number, line in enumerate(lines, 1):
        user = _user_of(line)
        if user is None:
            continue
        try:
            if ":" not in line:
                raise UsageError("expected user:hash: write the line with 'siltstone passwd'")
            check_user(user)
            if user in hashes:
                raise UsageError(f"user {user!r} has two lines")
            hashes[user] = PasswordHash.parse(line.partition(":")[2].rstrip())
        except UsageError as exc:
            raise UsageError(f"{exc}: path={path} line={number}") from exc
    return hashes


def check_user(user: str) -> None:
    """Check that a name can be written to a password file. Raises: UsageError."""
    if not user or user != user.strip() or user.startswith("#"):
        raise UsageError(
            f"a user name must not be empty, begin with # or begin or end with a space: "
            f"user={user!r}"
        )
    if ":" in user or not user.isprintable():
        raise UsageError(f"a user name must not have a colon or control characters: user={user!r}")


def with_password(lines: Sequence[str], user: str, password: PasswordHash) -> list[str]:
    """Return the lines with this hash for the user: replaced, or added as the last line."""
    entry = f"{user}:{password}"
    if not any(_user_of(line) == user for line in lines):
        return [*lines, entry]
    return [entry if _user_of(line) == user else line for line in lines]


def without_user(lines: Sequence[str], user: str) -> list[str]:
    """Return the lines without the lines of the user."""
    return [line for line in lines if _user_of(line) != user]


def _user_of(line: str) -> str | None:
    """Return the name before the colon; None for a comment and a blank line."""
    if not line.strip() or line.startswith("#"):
        return None
    return line.partition(":")[0]


def _usual_cost(hashes: Iterable[PasswordHash]) -> Cost:
    counted = Counter(known.cost for known in hashes)
    return counted.most_common(1)[0][0] if counted else Cost()


def _scrypt(password: bytes, salt: bytes, cost: Cost, size: int) -> bytes:
    return hashlib.scrypt(
        password,
        salt=salt,
        n=1 << cost.log_rounds,
        r=cost.block,
        p=cost.parallel,
        maxmem=cost.memory_bytes(),
        dklen=size,
    )


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
