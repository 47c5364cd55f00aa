"""The login of a Flight call in its header, and the handshake that returns a token.

authorization: Basic base64(user:password)      with any call; a handshake returns a token
authorization: Bearer TOKEN                      with later calls, instead of user and password
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final

from pyarrow import flight

from siltstone.errors import SiltstoneError, UsageError
from siltstone.flight.access import Caller, FlightAccess, FlightUser
from siltstone.flight.wire import error_info

LOGIN: Final = "login"
_HEADER: Final = "authorization"
# gRPC does not report the address of a handshake, so all failed handshakes count for one address.
_SOMEWHERE: Final = "handshake"


class CallLogin(flight.ServerMiddleware):  # type: ignore[misc]  # no types are shipped
    """The login in the header of one call, and the token of the response, if any."""

    def __init__(self, header: str, token: str = "") -> None:
        self.header = header
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {_HEADER: f"Bearer {self._token}"} if self._token else {}


class Logins(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # no types are shipped
    """Keeps the login of each call for its method; answers handshakes itself."""

    def __init__(self, access: FlightAccess) -> None:
        super().__init__()
        self._access = access

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[Any]]) -> CallLogin:
        """Read the header.

        Raises: FlightUnauthenticatedError for a refused handshake, FlightServerError if the login
        could not be checked.
        """
        header = str(next(iter(headers.get(_HEADER, [])), ""))
        if info.method != flight.FlightMethod.HANDSHAKE:
            return CallLogin(header)
        try:
            visitor = enter(self._access, header, _SOMEWHERE)
        except SiltstoneError as exc:
            raise flight.FlightServerError(str(exc), error_info(exc)) from exc
        return CallLogin(header, self._access.token_for(visitor))


class HandshakeLogins(flight.ServerAuthHandler):  # type: ignore[misc]  # no types are shipped
    """Accepts handshakes: their login is in the header, where Logins checks it."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Do nothing."""

    def is_valid(self, token: bytes) -> bytes:
        """Accept every call: the header of each call is checked instead."""
        del token
        return b""


def enter(access: FlightAccess, header: str, address: str) -> FlightUser:
    """Admit the caller with this header. Raises: FlightUnauthenticatedError with the reason."""
    caller = parse_caller(header, address)
    answer = caller if isinstance(caller, str) else access.enter(caller)
    if isinstance(answer, str):
        raise flight.FlightUnauthenticatedError(answer, error_info(UsageError(answer)))
    return answer


def parse_caller(header: str, address: str) -> Caller | str:
    """Return the credentials of an authorization header, or why it is invalid."""
    scheme, _, shown = header.strip().partition(" ")
    match scheme.lower():
        case "":
            return Caller(address=address)
        case "bearer" if shown.strip():
            return Caller(address=address, token=shown.strip())
        case "basic":
            try:
                user, colon, password = b64decode(shown, validate=True).partition(b":")
                if colon:
                    return Caller(address=address, username=user.decode(), password=password)
            except ValueError:
                pass
            return "the login must be user:password in base64"
        case _:
            return "the authorization header must be Basic or Bearer"
