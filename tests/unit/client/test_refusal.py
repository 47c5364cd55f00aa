from __future__ import annotations

import ssl

import pytest

from siltstone.client.refusal import RefusedError, reason_words, refused, system_words
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason.NOT_AUTHORIZED, "not authorized (0x87)"),
        (Reason.QOS_NOT_SUPPORTED, "QoS not supported (0x9b)"),
        (Reason.NORMAL_DISCONNECTION, "normal disconnection (0x00)"),
    ],
)
def test_a_reason_is_told_by_name_and_number(reason: Reason, words: str) -> None:
    assert reason_words(reason) == words


def test_what_the_server_says_itself_is_passed_on() -> None:
    told = Properties(reason_string="go away", server_reference="other:1883")
    error = refused("no", Reason.USE_ANOTHER_SERVER, told)
    assert (str(error), error.reason) == (
        "no: use another server (0x9c), it says 'go away', use 'other:1883' instead",
        Reason.USE_ANOTHER_SERVER,
    )
    assert str(refused("no", Reason.BANNED)) == "no: banned (0x8a)"


@pytest.mark.parametrize(
    ("reason", "passing"),
    [
        (Reason.SERVER_SHUTTING_DOWN, True),
        (Reason.SERVER_BUSY, True),
        (Reason.NORMAL_DISCONNECTION, True),
        (Reason.BAD_USER_NAME_OR_PASSWORD, False),
        # Two clients with one id would throw each other out forever.
        (Reason.SESSION_TAKEN_OVER, False),
        (None, False),
    ],
)
def test_only_some_reasons_pass(reason: Reason | None, passing: bool) -> None:
    assert RefusedError("no", reason=reason).passing is passing


def _certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


def _tls_error() -> ssl.SSLError:
    error = ssl.SSLError(1, "long text")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (OSError("Odd"), "odd"),
        (OSError(), "OSError"),
        (ConnectionResetError(), "connection reset"),
        (_certificate_error(), "self-signed certificate"),
        (_tls_error(), "wrong version number"),
        (ssl.SSLError(1, "Odd"), "odd"),
    ],
)
def test_the_system_s_errors_are_told_in_its_words(error: Exception, words: str) -> None:
    assert system_words(error) == words
