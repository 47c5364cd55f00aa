from __future__ import annotations

import hashlib
from pathlib import PurePath
from typing import Any

import pytest

from siltstone.broker.access import passwords
from siltstone.broker.access.passwords import (
    REMEMBERED_SECONDS,
    Cost,
    PasswordFile,
    PasswordHash,
    check_user,
    parse_passwords,
    text_lines,
    with_password,
    without_user,
)
from siltstone.clock import ManualClock
from siltstone.errors import UsageError

FILE = PurePath("/etc/siltstone/passwords")
# As cheap as it gets: these tests are about all but the cost.
CHEAP = Cost(log_rounds=1, block=1)
ALICE = PasswordHash.make(b"wonderland", cost=CHEAP)
BOB = PasswordHash.make(b"builder", cost=CHEAP)
# From RFC 7914, section 12: password "pleaseletmein", salt "SodiumChloride", N=16384, r=8, p=1.
VECTOR = (
    "$scrypt$ln=14,r=8,p=1$U29kaXVtQ2hsb3JpZGU"
    "$cCO9yzr9c0hGHAbNgf046/2o+7qQT44+qbVD9lRdofLVQylVYT8Pz2LUlwUkKpr55h6F3A1lHkDfzwF7RVdYhw"
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Hashing:
    """Counts the hashes that are computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.costs: list[Cost] = []
        compute = hashlib.scrypt

        def counted(password: bytes, *, n: int, r: int, p: int, **others: Any) -> bytes:
            self.costs.append(Cost(log_rounds=n.bit_length() - 1, block=r, parallel=p))
            return compute(password, n=n, r=r, p=p, **others)

        monkeypatch.setattr(hashlib, "scrypt", counted)


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Hashing:
    return Hashing(monkeypatch)


def test_a_hash_is_read_as_others_write_it() -> None:
    found = PasswordHash.parse(VECTOR)
    assert (found.cost, found.salt, len(found.digest)) == (Cost(), b"SodiumChloride", 64)
    assert (found.matches(b"pleaseletmein"), found.matches(b"pleaseletmeIn")) == (True, False)
    assert str(found) == VECTOR


def test_a_hash_goes_to_text_and_back() -> None:
    cost = Cost(log_rounds=2, block=3, parallel=4)
    made = PasswordHash.make(b"\x00\xff any bytes", cost=cost)
    again = PasswordHash.parse(str(made))
    assert again == made
    assert str(made).startswith("$scrypt$ln=2,r=3,p=4$")
    assert (again.matches(b"\x00\xff any bytes"), again.matches(b"\x00")) == (True, False)


def test_one_password_gives_two_hashes() -> None:
    first, second = (PasswordHash.make(b"same", cost=CHEAP) for _ in range(2))
    assert (first.salt != second.salt, first.digest != second.digest) == (True, True)


def test_a_new_hash_takes_16_mib_and_more_if_asked() -> None:
    assert PasswordHash.make(b"x").cost == Cost(log_rounds=14, block=8, parallel=1)
    assert PasswordHash.make(b"x", cost=Cost(log_rounds=16)).matches(b"x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "$6$salt$hash",
        "$7$101$c2FsdHNhbHQ$aGFzaA",
        VECTOR + "=",
        VECTOR.replace("ln=14", "ln=-1"),
        VECTOR.replace("ln=14", "ln=١٤"),
        VECTOR.replace("U29kaXVtQ2hsb3JpZGU", "U29k"),
        VECTOR.replace("$cCO9", ""),
    ],
)
def test_what_is_no_hash_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"^the hash must have the form \$scrypt\$ln=…,r=…,p=…\$salt"
    ) as e:
        PasswordHash.parse(text)
    assert not text or text not in str(e.value)


def test_a_hash_that_is_no_base64_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^salt and hash must be base64 without padding$"):
        PasswordHash.parse(VECTOR[:-1])


@pytest.mark.parametrize(
    "cost",
    ["ln=0,r=8,p=1", "ln=16,r=1,p=1", "ln=20,r=8,p=1", "ln=14,r=0,p=1", "ln=14,r=8,p=65"],
)
def test_a_cost_that_cannot_be_borne_is_refused(cost: str) -> None:
    with pytest.raises(UsageError, match=r"^the cost of the hash is out of bounds, .*: ln="):
        PasswordHash.parse(VECTOR.replace("ln=14,r=8,p=1", cost))


def test_users_are_read_in_order_between_comments() -> None:
    text = f"\ufeff# meters\r\n\r\nalice:{ALICE}\r\n  \n#carol:gone\nbob the builder:{BOB}  \n"
    found = parse_passwords(text_lines(text.encode(), FILE), FILE)
    assert list(found.items()) == [("alice", ALICE), ("bob the builder", BOB)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("alice", "expected user:hash: write the line with 'siltstone passwd'"),
        (
            "alice:secret",
            (
                "the hash must have the form $scrypt$ln=…,r=…,p=…$salt$hash: write it with "
                "'siltstone passwd'"
            ),
        ),
        (f"bob:{BOB}", "user 'bob' has two lines"),
        (
            f" alice:{ALICE}",
            (
                "a user name must not be empty, begin with # or begin or end with a space: "
                "user=' alice'"
            ),
        ),
        (
            f":{ALICE}",
            ("a user name must not be empty, begin with # or begin or end with a space: user=''"),
        ),
    ],
    ids=["no hash", "no scrypt", "twice", "blank", "empty"],
)
def test_a_wrong_line_is_named_with_its_file(line: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_passwords(["# users", f"bob:{BOB}", line], FILE)
    assert str(caught.value) == f"{complaint}: path=/etc/siltstone/passwords line=3"


def test_a_line_that_is_not_utf_8_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        text_lines(b"one\ntwo\xff\n", FILE)
    assert str(caught.value) == "the line is not UTF-8: path=/etc/siltstone/passwords line=2"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        ("a\u2028b\x0c\r\nc\n".encode(), ["a\u2028b\x0c", "c"]),
    ],
)
def test_lines_end_with_a_line_feed_and_nothing_else(data: bytes, lines: list[str]) -> None:
    assert text_lines(data, FILE) == lines


@pytest.mark.parametrize("user", ["a", "a b", "ünal", "a#", "user@example.org", "+", "a/b"])
def test_names_that_can_stand_in_the_file(user: str) -> None:
    check_user(user)
    assert list(parse_passwords([f"{user}:{ALICE}"], FILE)) == [user]


@pytest.mark.parametrize(
    "user", ["", " a", "a ", "#a", "a:b", "a\nb", "a\x00", "a\x7f", "a\u2028", "\ud800"]
)
def test_names_that_cannot_stand_in_the_file(user: str) -> None:
    with pytest.raises(UsageError, match=r"^a user name must not "):
        check_user(user)


def test_a_password_is_right_or_wrong(clock: ManualClock) -> None:
    file = PasswordFile({"alice": ALICE, "bob": BOB}, clock)
    assert [
        file.verify(user, password)
        for user, password in (
            ("alice", b"wonderland"),
            ("alice", b"builder"),
            ("alice", b""),
            ("bob", b"builder"),
            ("Bob", b"builder"),
            ("", b""),
        )
    ] == [True, False, False, True, False, False]


def test_an_unknown_user_costs_the_hash_that_most_users_have(
    clock: ManualClock, hashing: Hashing
) -> None:
    usual = Cost(log_rounds=2, block=2)
    hashes = {
        "a": ALICE,
        "b": PasswordHash.make(b"b", cost=usual),
        "c": PasswordHash.make(b"c", cost=usual),
    }
    hashing.costs.clear()
    file = PasswordFile(hashes, clock)
    assert (file.verify("nobody", b"x"), file.verify("b", b"x")) == (False, False)
    assert hashing.costs == [usual, usual]


def test_an_empty_file_knows_nobody_and_takes_its_time(
    clock: ManualClock, hashing: Hashing
) -> None:
    assert not PasswordFile({}, clock).verify("nobody", b"x")
    assert hashing.costs == [Cost()]


def test_a_right_password_is_hashed_once(clock: ManualClock, hashing: Hashing) -> None:
    file = PasswordFile({"alice": ALICE}, clock)
    assert not file.remembers("alice", b"wonderland")
    assert [file.verify("alice", b"wonderland") for _ in range(3)] == [True, True, True]
    assert file.remembers("alice", b"wonderland")
    assert hashing.costs == [CHEAP]


def test_only_the_right_password_of_that_user_is_remembered(
    clock: ManualClock, hashing: Hashing
) -> None:
    file = PasswordFile({"alice": ALICE, "bob": BOB}, clock)
    file.verify("alice", b"wonderland")
    file.verify("bob", b"wrong")
    pairs = [("alice", b"wrong"), ("bob", b"wrong"), ("bob", b"wonderland"), ("eve", b"wonderland")]
    assert [file.remembers(*pair) for pair in pairs] == [False] * 4
    assert [file.verify(*pair) for pair in pairs] == [False] * 4
    assert len(hashing.costs) == 6
    assert file.remembers("alice", b"wonderland")


def test_a_password_is_remembered_for_a_while(clock: ManualClock, hashing: Hashing) -> None:
    file = PasswordFile({"alice": ALICE}, clock)
    file.verify("alice", b"wonderland")
    clock.advance(REMEMBERED_SECONDS - 1)
    assert file.remembers("alice", b"wonderland")
    clock.advance(1)
    assert not file.remembers("alice", b"wonderland")
    assert file.verify("alice", b"wonderland")
    assert (file.remembers("alice", b"wonderland"), len(hashing.costs)) == (True, 2)


def test_another_reading_of_the_file_remembers_nothing(clock: ManualClock) -> None:
    PasswordFile({"alice": ALICE}, clock).verify("alice", b"wonderland")
    assert not PasswordFile({"alice": ALICE}, clock).remembers("alice", b"wonderland")


def test_of_too_many_passwords_the_oldest_is_forgotten(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "REMEMBERED_MAX", 2)
    users = {name: PasswordHash.make(name.encode(), cost=CHEAP) for name in "abc"}
    file = PasswordFile(users, clock)
    for name in "abc":
        assert file.verify(name, name.encode())
    assert [file.remembers(name, name.encode()) for name in "abc"] == [False, True, True]


def test_a_password_is_changed_in_place_and_a_new_user_comes_last() -> None:
    lines = ["# one", "alice:x", "", "# alice:y", "alices:z"]
    assert with_password(lines, "alice", ALICE) == [
        "# one",
        f"alice:{ALICE}",
        "",
        "# alice:y",
        "alices:z",
    ]
    assert with_password(lines, "bob", BOB) == [*lines, f"bob:{BOB}"]


def test_a_user_goes_and_the_comments_stay() -> None:
    lines = ["# one", "alice:x", "", "# alice:y", "alices:z"]
    assert without_user(lines, "alice") == ["# one", "", "# alice:y", "alices:z"]
    assert without_user(lines, "bob") == lines
