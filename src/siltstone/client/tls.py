"""The certificate that a client shows to a server.

Invariants: an error names the file that is wrong; the password of a key is never asked for.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath

from siltstone.client.refusal import system_words
from siltstone.errors import UsageError


def show_certificate(
    context: ssl.SSLContext, *, certificate: str | PurePath, key: str | PurePath | None
) -> None:
    """Load a certificate and its key into a client context; without a key, its file has both.

    Raises: UsageError that names the file.
    """
    key = key or certificate
    with _reading(certificate, holds="a PEM certificate"):
        # load_cert_chain does not say which of its two files is wrong: check this one first.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    with _reading(key, holds="a PEM private key"):
        context.load_cert_chain(certificate, key, _no_password(key))


@contextmanager
def _reading(path: str | PurePath, *, holds: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"the key does not match the certificate: path={path}") from exc
        raise UsageError(f"the file must contain {holds}: path={path}") from exc
    except (OSError, ValueError) as exc:
        raise UsageError(f"the file cannot be read: {system_words(exc)}: path={path}") from exc


def _no_password(key: str | PurePath) -> Callable[[], str]:
    """Return a password callback that raises; without one OpenSSL would ask on the terminal."""

    def refuse() -> str:
        raise UsageError(f"the key is encrypted, decrypt its file: path={key}")

    return refuse
