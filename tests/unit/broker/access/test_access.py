from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import PurePath
from types import ModuleType

import pytest

from siltstone.broker.access.access import (
    Access,
    Credentials,
    Hook,
    Identity,
    load_access,
    load_hook,
)
from siltstone.broker.access.acl import Acl
from siltstone.broker.access.passwords import Cost, PasswordFile, PasswordHash
from siltstone.broker.settings.access import AccessSettings
from siltstone.clock import ManualClock
from siltstone.errors import UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import replace_file
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter

ALICE = PasswordHash.make(b"wonderland", cost=Cost(log_rounds=1, block=1))
WRONG = Reason.BAD_USER_NAME_OR_PASSWORD
REFUSED = Reason.NOT_AUTHORIZED


def credentials(
    username: str | None = None,
    password: bytes | None = None,
    *,
    certificate_user: str | None = None,
    anonymous_allowed: bool = False,
) -> Credentials:
    return Credentials(
        client_id="c1",
        username=username,
        password=password,
        certificate_user=certificate_user,
        address="192.0.2.7",
        listener="tcp",
        anonymous_allowed=anonymous_allowed,
    )


def identity(user: str) -> Identity:
    return Identity(user=user, client_id="c1")


def passwords() -> PasswordFile:
    return PasswordFile({"alice": ALICE}, ManualClock())


def rules(*lines: str) -> Acl:
    return Acl.parse(lines, PurePath("acl"))


class Authenticator:
    """A hook that gives one answer to each login, or raises it, and keeps what it was asked."""

    def __init__(self, answer: object) -> None:
        self.asked: list[Credentials] = []
        self._answer = answer

    def authenticate(self, shown: Credentials) -> object:
        self.asked.append(shown)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Authorizer:
    """A hook that answers by topic, and keeps what it was asked."""

    def __init__(self, answers: dict[str, object] | None = None) -> None:
        self.asked: list[tuple[Identity, str, str]] = []
        self._answers = answers or {}

    def authorize(self, who: Identity, action: str, topic: str) -> object:
        self.asked.append((who, action, topic))
        answer = self._answers.get(topic)
        if isinstance(answer, Exception):
            raise answer
        return answer


def decisions(access: Access, user: str, topic: str) -> tuple[bool, bool, bool]:
    """Return whether a user may publish, subscribe to and receive a topic."""
    who = identity(user)
    return (
        access.may_publish(who, topic.encode()),
        access.may_subscribe(who, TopicFilter.parse(topic)),
        access.may_receive(who, topic.encode()),
    )


def told(record: logging.LogRecord) -> tuple[str, object]:
    """Return the event of a record, and its facts."""
    return record.getMessage(), record.__dict__["facts"]


YES, NO = (True, True, True), (False, False, False)


def test_a_password_is_no_part_of_the_text_of_credentials() -> None:
    assert "wonderland" not in repr(credentials("alice", b"wonderland"))
    assert "alice" in repr(credentials("alice", b"wonderland"))


@pytest.mark.parametrize(
    ("shown", "answer"),
    [
        (credentials("alice", b"wonderland"), identity("alice")),
        (credentials("alice", b"wrong"), WRONG),
        (credentials("alice", b""), WRONG),
        (credentials("alice", None), WRONG),
        (credentials("bob", b"wonderland"), WRONG),
        (credentials("", b""), WRONG),
        (credentials("alice", b"wrong", anonymous_allowed=True), WRONG),
        (credentials("alice", None, anonymous_allowed=True), WRONG),
        (credentials(None, None), REFUSED),
        (credentials(None, b"wonderland"), REFUSED),
        (credentials(None, None, anonymous_allowed=True), identity("")),
        (credentials(certificate_user="meter-7"), identity("meter-7")),
        (credentials("alice", b"wrong", certificate_user="meter-7"), identity("meter-7")),
        (credentials(certificate_user=""), REFUSED),
        (credentials("alice", b"wonderland", certificate_user=""), identity("alice")),
    ],
)
def test_a_login_with_a_password_file(shown: Credentials, answer: Identity | Reason) -> None:
    assert Access(passwords(), None, None).authenticate(shown) == answer


@pytest.mark.parametrize(
    ("shown", "answer"),
    [
        (credentials("alice", b"anything", anonymous_allowed=True), identity("")),
        (credentials("alice", None, anonymous_allowed=True), identity("")),
        (credentials("alice", b"anything"), REFUSED),
        (credentials(anonymous_allowed=True), identity("")),
        (credentials(), REFUSED),
        (credentials("alice", certificate_user="meter-7"), identity("meter-7")),
    ],
)
def test_a_name_that_nobody_checks_is_no_name(
    shown: Credentials, answer: Identity | Reason
) -> None:
    for access in (Access(None, None, None), Access(None, None, Hook(Authorizer()))):
        assert (access.trivial(shown), access.authenticate(shown)) == (answer, answer)


def test_lines_of_a_user_do_not_apply_to_a_name_that_nobody_checked() -> None:
    access = Access(None, rules("user alice", "topic a"), None)
    who = access.authenticate(credentials("alice", b"x", anonymous_allowed=True))
    assert isinstance(who, Identity)
    assert access.may_publish(who, b"a") is False


@pytest.mark.parametrize(
    ("shown", "answer"),
    [
        (credentials("alice", b"wonderland"), None),
        (credentials("bob", b"x"), None),
        (credentials("bob", None), WRONG),
        (credentials(), REFUSED),
        (credentials(anonymous_allowed=True), identity("")),
        (credentials(certificate_user="meter-7"), identity("meter-7")),
    ],
)
def test_what_takes_no_hash_is_decided_at_once(
    shown: Credentials, answer: Identity | Reason | None
) -> None:
    assert Access(passwords(), None, None).trivial(shown) == answer


def test_a_password_that_was_right_is_decided_at_once() -> None:
    access = Access(passwords(), None, None)
    assert access.authenticate(credentials("alice", b"wonderland")) == identity("alice")
    assert access.trivial(credentials("alice", b"wonderland")) == identity("alice")
    assert access.trivial(credentials("alice", b"wrong")) is None


@pytest.mark.parametrize(
    ("answer", "shown", "expected"),
    [
        (True, credentials("bob", b"x"), identity("bob")),
        (True, credentials("bob", certificate_user="meter-7"), identity("meter-7")),
        (True, credentials(), identity("")),
        ("robert", credentials("bob", b"x"), identity("robert")),
        ("", credentials("bob", b"x"), identity("")),
        (False, credentials("alice", b"wonderland"), WRONG),
        (False, credentials(certificate_user="meter-7"), REFUSED),
        (False, credentials(anonymous_allowed=True), REFUSED),
        (None, credentials("alice", b"wonderland"), identity("alice")),
        (None, credentials("alice", b"wrong"), WRONG),
        (None, credentials(certificate_user="meter-7"), identity("meter-7")),
        (None, credentials(anonymous_allowed=True), identity("")),
    ],
)
def test_the_hook_decides_before_all_others(
    answer: object, shown: Credentials, expected: Identity | Reason
) -> None:
    hook = Authenticator(answer)
    access = Access(passwords(), None, Hook(hook))
    assert (access.trivial(shown), hook.asked) == (None, [])
    assert (access.authenticate(shown), hook.asked) == (expected, [shown])


def test_a_name_that_the_hook_leaves_to_others_is_refused_where_there_are_none() -> None:
    access = Access(None, None, Hook(Authenticator(None)))
    assert access.authenticate(credentials("bob", b"x", anonymous_allowed=True)) == WRONG
    assert access.authenticate(credentials(anonymous_allowed=True)) == identity("")


@pytest.mark.parametrize("answer", [ValueError("no database"), 1, 0, [], b"bob"])
def test_a_hook_that_fails_refuses_the_login_and_is_logged(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access(passwords(), None, Hook(Authenticator(answer), ManualClock()))
    shown = credentials("alice", b"wonderland", anonymous_allowed=True)
    assert access.authenticate(shown) == Reason.SERVER_UNAVAILABLE
    (record,) = caplog.records
    assert (record.name, record.levelno, told(record)) == (
        "siltstone.access",
        logging.ERROR,
        ("hook_failed", {"method": "authenticate", "unlogged": 0}),
    )
    assert "wonderland" not in caplog.text
    assert ("no database" if isinstance(answer, ValueError) else "must return") in caplog.text


def test_a_hook_that_fails_often_is_logged_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    access = Access(None, None, Hook(Authorizer({"a": ValueError("no")}), clock))
    for _ in range(5):
        assert decisions(access, "alice", "a") == NO
    clock.advance(1.0)
    access.may_publish(identity("alice"), b"a")
    assert [told(record)[1] for record in caplog.records] == [
        {"method": "authorize", "unlogged": 0},
        {"method": "authorize", "unlogged": 14},
    ]


def test_everything_is_allowed_without_rules() -> None:
    for access in (Access(None, None, None), Access(passwords(), None, Hook(Authenticator(None)))):
        assert access.open
        assert decisions(access, "", "a") == YES


def test_the_acl_decides_by_user_and_client() -> None:
    access = Access(None, rules("user alice", "topic a", "client c1", "topic read c"), None)
    assert not access.open
    assert [decisions(access, user, "a") for user in ("alice", "")] == [YES, NO]
    assert decisions(access, "", "c") == (False, True, True)


def test_the_hook_decides_before_the_acl() -> None:
    hook = Authorizer({"yes": True, "no": False})
    access = Access(None, rules("user alice", "topic no", "topic else"), Hook(hook))
    assert not access.open
    assert [decisions(access, "alice", topic) for topic in ("yes", "no", "else", "other")] == [
        YES,
        NO,
        YES,
        NO,
    ]


def test_what_the_hook_leaves_open_is_allowed_where_there_is_no_acl() -> None:
    access = Access(None, None, Hook(Authorizer({"no": False})))
    assert not access.open
    assert [decisions(access, "", topic) for topic in ("no", "else")] == [NO, YES]


def test_the_hook_is_told_who_wants_what() -> None:
    hook = Authorizer()
    access = Access(None, None, Hook(hook))
    alice = identity("alice")
    access.may_publish(alice, "a/ü".encode())
    access.may_subscribe(alice, TopicFilter.parse("$share/group/a/+/#"))
    access.may_receive(alice, b"a/b")
    assert hook.asked == [
        (alice, "publish", "a/ü"),
        (alice, "subscribe", "a/+/#"),
        (alice, "receive", "a/b"),
    ]
    assert [type(action) for _, action, _ in hook.asked] == [str, str, str]


@pytest.mark.parametrize("answer", [ValueError("no"), "yes", 1])
def test_a_hook_that_fails_refuses_the_topic(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access(None, rules("topic a"), Hook(Authorizer({"a": answer}), ManualClock()))
    assert decisions(access, "", "a") == NO
    assert len(caplog.records) == 1


class Nothing:
    """Has no method of a hook."""


class Async:
    """Has a method that would have to be awaited."""

    async def authenticate(self, shown: Credentials) -> bool:
        return True


class Attribute:
    """Has what is no method."""

    authorize = True


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    def install_as_site_hook(make: object) -> None:
        module = ModuleType("site_hook")
        module.__dict__["make"] = make
        monkeypatch.setitem(sys.modules, "site_hook", module)

    return install_as_site_hook


def test_a_hook_is_what_the_callable_returns(install: Callable[[object], None]) -> None:
    install(lambda: Authenticator("robert"))
    hook = load_hook("site_hook:make")
    assert (hook.authenticates, hook.authorizes) == (True, False)
    assert hook.authenticate(credentials("bob")) == identity("robert")
    install(Authorizer)
    hook = load_hook("site_hook:make")
    assert (hook.authenticates, hook.authorizes) == (False, True)
    assert hook.authenticate(credentials("bob")) is None


def failing() -> object:
    raise OSError("no route")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (None, "setting access.hook must name a callable of its module: 'site_hook:make'"),
        (
            failing,
            "setting access.hook: 'site_hook:make' failed with OSError: no route",
        ),
        (Nothing, "the hook must have a method authenticate or authorize, or both: hook=Nothing"),
        (Attribute, "the hook's authorize must be a function that is not async, got True"),
    ],
)
def test_a_hook_that_cannot_be_made_is_refused(
    install: Callable[[object], None], make: object, complaint: str
) -> None:
    install(make)
    with pytest.raises(UsageError) as caught:
        load_hook("site_hook:make")
    assert str(caught.value) == complaint


def test_a_hook_that_must_be_awaited_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^the hook's authenticate must be a function that is not async"
    ):
        Hook(Async())


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        load_hook("no_such_module:make")
    assert str(caught.value) == (
        "setting access.hook: 'no_such_module:make' failed with ModuleNotFoundError: No module "
        "named 'no_such_module'"
    )


@pytest.fixture
def fs() -> MemoryFileSystem:
    made = MemoryFileSystem()
    replace_file(made, PurePath("/passwords"), f"alice:{ALICE}\n".encode())
    replace_file(made, PurePath("/acl"), b"user alice\ntopic a\n")
    replace_file(made, PurePath("/wrong"), b"\nwrong\n")
    return made


def test_settings_that_name_nothing_leave_all_open(fs: MemoryFileSystem) -> None:
    access = load_access(fs, AccessSettings())
    assert (access.open, access.trivial(credentials("alice"))) == (True, REFUSED)


def test_files_and_hook_are_read_as_the_settings_say(
    fs: MemoryFileSystem, install: Callable[[object], None]
) -> None:
    install(lambda: Authorizer({"no": False}))
    settings = AccessSettings(password_file="/passwords", acl_file="/acl", hook="site_hook:make")  # noqa: S106 - the name of a file
    access = load_access(fs, settings)
    assert access.authenticate(credentials("alice", b"wonderland")) == identity("alice")
    assert access.authenticate(credentials("alice", b"wrong")) == WRONG
    assert [decisions(access, "alice", topic) for topic in ("a", "b", "no")] == [YES, NO, NO]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"password_file": "/gone"},
            (
                "setting access.password_file must name a file: "
                "no such file or directory: path=/gone"
            ),
        ),
        (
            {"acl_file": "/"},
            "setting access.acl_file must name a file: not a regular file: path=/",
        ),
        (
            {"password_file": "/wrong"},
            "expected user:hash: write the line with 'siltstone passwd': path=/wrong line=2",
        ),
        (
            {"acl_file": "/wrong"},
            (
                "a line must begin with user, client, topic, pattern or #, got 'wrong': "
                "path=/wrong "
                "line=2"
            ),
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    fs: MemoryFileSystem, settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_access(fs, AccessSettings.model_validate(settings))
    assert str(caught.value) == complaint
