"""Authentication and authorization of clients: password file, ACL file and hook.

The hook decides about a login first, then the certificate, then the password file, and at last the
setting of the listener for anonymous clients. The hook decides about a topic first, then the ACL
file. Without both, everything is allowed.

Invariants: Identity.user is a verified name, or "". If a hook raises, the request is refused. Any
thread may call `authenticate`, which may take long. All other methods are called on the thread of
the loop.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, TypeAlias

from siltstone.broker.access.acl import Acl, Action, Rights
from siltstone.broker.access.passwords import PasswordFile, parse_passwords, text_lines
from siltstone.broker.settings.access import AccessSettings
from siltstone.clock import Clock, SystemClock
from siltstone.errors import UsageError
from siltstone.fs.api import FileSystem
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter

_LOG: Final = logging.getLogger("siltstone.access")
_QUIET_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials of a client that connects; the password is not in the repr."""

    client_id: str
    username: str | None
    password: bytes | None = field(repr=False)
    certificate_user: str | None
    address: str
    listener: str
    anonymous_allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a client: its verified user, or "", and the client id that it chose."""

    user: str
    client_id: str


# The results of hook methods are checked at run time.
Authenticate: TypeAlias = Callable[[Credentials], object]
Authorize: TypeAlias = Callable[[Identity, str, str], object]


class _HookFailedError(Exception):
    """The hook raised (then the exception is the cause), or returned an unexpected value."""


class Hook:
    """User code for access decisions: an object with `authenticate`, `authorize`, or both."""

    def __init__(self, target: object, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._quiet_until = 0.0
        self._unlogged = 0
        self._authenticate: Authenticate | None = _method(target, "authenticate")
        self._authorize: Authorize | None = _method(target, "authorize")
        if self._authenticate is None and self._authorize is None:
            raise UsageError(
                f"the hook must have a method authenticate or authorize, or both: "
                f"hook={type(target).__name__}"
            )

    @property
    def authenticates(self) -> bool:
        return self._authenticate is not None

    @property
    def authorizes(self) -> bool:
        return self._authorize is not None

    def authenticate(self, credentials: Credentials) -> Identity | Reason | None:
        """Return the decision of the hook about a login; None if it leaves the decision open."""
        if self._authenticate is None:
            return None
        try:
            answer = _called(self._authenticate, credentials)
            match answer:
                case None:
                    return None
                case True:
                    user = credentials.certificate_user or credentials.username or ""
                    return Identity(user=user, client_id=credentials.client_id)
                case False:
                    return _refusal(credentials)
                case str():
                    return Identity(user=answer, client_id=credentials.client_id)
                case _:
                    raise _misunderstood(answer, "a bool, a user or None")
        except _HookFailedError as exc:
            self._log("authenticate", exc)
            # The credentials were not checked, so the client is not at fault and may try again.
            return Reason.SERVER_UNAVAILABLE

    def authorize(self, identity: Identity, action: Action, topic: str) -> bool | None:
        """Return the decision of the hook about a topic or filter; None if it leaves it open."""
        if self._authorize is None:
            return None
        try:
            answer = _called(self._authorize, identity, action.value, topic)
            if answer is None or isinstance(answer, bool):
                return answer
            raise _misunderstood(answer, "a bool or None")
        except _HookFailedError as exc:
            self._log("authorize", exc)
            return False

    def _log(self, method: str, failure: _HookFailedError) -> None:
        """Log a failure with its traceback, at most one in each second."""
        now = self._clock.monotonic()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        _LOG.error(
            "hook_failed",
            exc_info=failure.__cause__ or failure,
            extra={"facts": {"method": method, "unlogged": self._unlogged}},
        )
        self._quiet_until = now + _QUIET_SECONDS
        self._unlogged = 0


class Access:
    """The access decisions; a new object is created when the files are read again."""

    def __init__(self, passwords: PasswordFile | None, acl: Acl | None, hook: Hook | None) -> None:
        self._passwords = passwords
        self._acl = acl
        self._hook = hook
        # Whether every connected client may do everything, so that no check is needed.
        self.open: Final = acl is None and (hook is None or not hook.authorizes)

    def trivial(self, credentials: Credentials) -> Identity | Reason | None:
        """Decide about a login if that takes no time; None: call `authenticate` in a thread."""
        if self._asks_hook:
            return None
        return self._decide(credentials)

    def authenticate(self, credentials: Credentials) -> Identity | Reason:
        """Decide about a login; a hash or a hook may take long.

        A refusal is a Reason: BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED if the client gave no user
        name, or SERVER_UNAVAILABLE if the hook failed.
        """
        if self._hook is not None:
            answer = self._hook.authenticate(credentials)
            if answer is not None:
                return answer
        decided = self._decide(credentials)
        return self._verify(credentials) if decided is None else decided

    @property
    def _asks_hook(self) -> bool:
        return self._hook is not None and self._hook.authenticates

    def _decide(self, credentials: Credentials) -> Identity | Reason | None:
        """Decide without the hook; None if a password must be hashed."""
        client_id, user = credentials.client_id, credentials.username
        if credentials.certificate_user:
            return Identity(user=credentials.certificate_user, client_id=client_id)
        if user is not None and (self._passwords is not None or self._asks_hook):
            if self._passwords is None or credentials.password is None:
                return Reason.BAD_USER_NAME_OR_PASSWORD
            if self._passwords.remembers(user, credentials.password):
                return Identity(user=user, client_id=client_id)
            return None
        # An unverified user name is ignored: the ACL lines of that user must not apply.
        if credentials.anonymous_allowed:
            return Identity(user="", client_id=client_id)
        return Reason.NOT_AUTHORIZED

    def _verify(self, credentials: Credentials) -> Identity | Reason:
        user, password = credentials.username, credentials.password
        assert self._passwords is not None
        assert user is not None
        assert password is not None
        if self._passwords.verify(user, password):
            return Identity(user=user, client_id=credentials.client_id)
        return Reason.BAD_USER_NAME_OR_PASSWORD

    def may_publish(self, identity: Identity, topic: bytes) -> bool:
        answer = self._ask(identity, Action.PUBLISH, topic)
        return self._rights(identity).may_publish(topic) if answer is None else answer

    def may_receive(self, identity: Identity, topic: bytes) -> bool:
        answer = self._ask(identity, Action.RECEIVE, topic)
        return self._rights(identity).may_receive(topic) if answer is None else answer

    def may_subscribe(self, identity: Identity, topic_filter: TopicFilter) -> bool:
        """Return whether a client may subscribe; the group of a shared filter is not checked."""
        answer = self._ask(identity, Action.SUBSCRIBE, b"/".join(topic_filter.levels))
        return self._rights(identity).may_subscribe(topic_filter) if answer is None else answer

    def _ask(self, identity: Identity, action: Action, topic: bytes) -> bool | None:
        """Return the decision of the hook, or True without an ACL; None: the ACL decides."""
        answer = None
        if self._hook is not None and self._hook.authorizes:
            answer = self._hook.authorize(identity, action, topic.decode())
        return True if answer is None and self._acl is None else answer

    def _rights(self, identity: Identity) -> Rights:
        assert self._acl is not None
        return self._acl.rights(user=identity.user, client_id=identity.client_id)


def load_access(fs: FileSystem, settings: AccessSettings, clock: Clock | None = None) -> Access:
    """Read the files and create the hook that the settings name.

    Raises: UsageError, which names the setting, or file and line, and what was expected; DiskError.
    """
    passwords = acl = hook = None
    if settings.password_file:
        path = PurePath(settings.password_file)
        hashes = parse_passwords(_lines(fs, path, "password_file"), path)
        passwords = PasswordFile(hashes, clock or SystemClock())
    if settings.acl_file:
        path = PurePath(settings.acl_file)
        acl = Acl.parse(_lines(fs, path, "acl_file"), path)
    if settings.hook:
        hook = load_hook(settings.hook, clock)
    return Access(passwords, acl, hook)


def load_hook(name: str, clock: Clock | None = None) -> Hook:
    """Import `module:callable` and call it; the returned object is the hook.

    Raises: UsageError.
    """
    module_name, _, callable_name = name.partition(":")
    try:
        module = _called(importlib.import_module, module_name)
        make = getattr(module, callable_name, None)
        if not callable(make):
            raise UsageError(f"setting access.hook must name a callable of its module: {name!r}")
        return Hook(_called(make), clock)
    except _HookFailedError as exc:
        cause = exc.__cause__
        raise UsageError(
            f"setting access.hook: {name!r} failed with {type(cause).__name__}: {cause}"
        ) from cause


def _lines(fs: FileSystem, path: PurePath, setting: str) -> list[str]:
    try:
        data = fs.read(path)
    except UsageError as exc:
        raise UsageError(f"setting access.{setting} must name a file: {exc}") from exc
    return text_lines(data, path)


def _method(target: object, name: str) -> Callable[..., object] | None:
    method: object = getattr(target, name, None)
    if method is None:
        return None
    if not callable(method) or inspect.iscoroutinefunction(method):
        raise UsageError(f"the hook's {name} must be a function that is not async, got {method!r}")
    return method


def _called(function: Callable[..., object], *args: object) -> object:
    """Call user code, which may raise any exception. Raises: _HookFailedError."""
    try:
        return function(*args)
    except Exception as exc:
        raise _HookFailedError from exc


def _misunderstood(answer: object, expected: str) -> _HookFailedError:
    # Only the type is shown: the returned value may contain a secret.
    return _HookFailedError(f"the hook must return {expected}, got {type(answer).__name__}")


def _refusal(credentials: Credentials) -> Reason:
    if credentials.username is None:
        return Reason.NOT_AUTHORIZED
    return Reason.BAD_USER_NAME_OR_PASSWORD
