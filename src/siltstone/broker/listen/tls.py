"""TLS contexts of listeners, and the user names in client certificates.

Invariants: no version older than TLS 1.2 is accepted; only complete contexts are returned; the
broker never asks for a password on the terminal. The `access` package decides how the name of a
certificate is used.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, cast

from siltstone.broker.settings.broker import ListenerSettings
from siltstone.errors import UsageError

_VERIFY: Final[dict[Literal["none", "optional", "required"], ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(settings: ListenerSettings) -> ssl.SSLContext:
    """Read the certificates that the settings name, and return a server context.

    Raises: UsageError that names the listener, the setting and the file.
    """
    with _reading(settings, "certificate", settings.certificate, holds="a PEM certificate"):
        # load_cert_chain does not say which of its two files is wrong: check this one first.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(settings.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Otherwise a client could force any number of handshakes on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    with _reading(settings, "key", settings.key, holds="a PEM private key"):
        context.load_cert_chain(settings.certificate, settings.key, _no_password(settings))
    if settings.client_certificate != "none":
        with _reading(settings, "client_ca", settings.client_ca, holds="a PEM certificate"):
            context.load_verify_locations(settings.client_ca)
    context.verify_mode = _VERIFY[settings.client_certificate]
    return context


def certificate_user(peercert: Mapping[str, object] | None) -> str | None:
    """Return the common name of the subject of a certificate (`peercert` of a transport).

    Return None without a certificate, and if the subject has no common name, several, or one that
    MQTT does not allow as a user name [MQTT-1.5.4-2].
    """
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", (peercert or {}).get("subject", ()))
    names = [value for parts in subject for key, value in parts if key == "commonName"]
    if len(names) != 1 or not names[0] or "\0" in names[0]:
        return None
    return names[0]


@contextmanager
def _reading(settings: ListenerSettings, name: str, path: str, *, holds: str) -> Iterator[None]:
    where = f"cannot listen on {settings.address}: {name}"
    try:
        yield
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"{where} does not match the certificate: path={path} "
                f"certificate={settings.certificate}"
            ) from exc
        raise UsageError(f"{where} must contain {holds}: path={path}") from exc
    except OSError as exc:
        raise UsageError(f"{where} cannot be read: {exc.strerror}: path={path}") from exc


def _no_password(settings: ListenerSettings) -> Callable[[], str]:
    """Return a password callback that raises; without one OpenSSL would ask on the terminal."""

    def refuse() -> str:
        raise UsageError(
            f"cannot listen on {settings.address}: key is encrypted; decrypt the file, the broker "
            f"does not ask for its password: path={settings.key}"
        )

    return refuse
