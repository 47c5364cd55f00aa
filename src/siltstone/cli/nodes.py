"""A node instead of the data directory: its url and its login."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from siltstone.cli.shared_options import takes_options
from siltstone.errors import UsageError
from siltstone.scan.node import node_from

_LOGIN: Final = "Login for Arrow Flight"
SourceUrl = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="Read over Arrow Flight, for example grpc+tcp://host:8815.",
        show_default="the data directory",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLogin:
    """The login for nodes that are named by url."""

    username: Annotated[
        str, typer.Option("--username", "-u", help="Name of the user.", rich_help_panel=_LOGIN)
    ] = ""
    password: Annotated[
        str,
        typer.Option(
            "--password",
            envvar="SILTSTONE_PASSWORD",
            help="Password. Other users of this machine can see it here; prefer --password-file.",
            show_default=False,
            rich_help_panel=_LOGIN,
        ),
    ] = ""
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="File with the password in its first line.",
            rich_help_panel=_LOGIN,
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with a token in its first line, instead of user and password.",
            rich_help_panel=_LOGIN,
        ),
    ] = None
    root_certificates: Annotated[
        Path | None,
        typer.Option(
            "--root-certificates",
            metavar="FILE",
            help="Certificate authorities to trust, as PEM.",
            show_default="those of this machine",
            rich_help_panel=_LOGIN,
        ),
    ] = None

    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            help="Certificate of this client, as PEM.",
            rich_help_panel=_LOGIN,
        ),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="Private key of the certificate.", rich_help_panel=_LOGIN
        ),
    ] = None

    def options(self, url: str) -> dict[str, str]:
        """Return the options of the source for a node; none without a url.

        Raises: UsageError.
        """
        named = {"username": self.username}
        # Without a user, ignore a password of the environment: it may have another purpose.
        named["password"] = self.password if self.username else ""
        if self.password_file is not None:
            named["password"] = _first_line(self.password_file)
        if self.token_file is not None:
            named["token"] = _first_line(self.token_file)
        files = {
            "rootCertificates": self.root_certificates,
            "certificate": self.certificate,
            "key": self.key,
        }
        named |= {name: str(file) for name, file in files.items() if file is not None}
        given = {name: value for name, value in ({"url": url} | named).items() if value}
        node_from({name.lower(): value for name, value in given.items()})
        return given


def takes_login(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of NodeLogin to a command, which receives them as `login`."""
    return takes_options(command, NodeLogin, "login")


def own_directory(data: Path) -> str:
    """Return the path of a data directory, for a command that needs its files.

    Raises: UsageError.
    """
    if str(data).startswith(("grpc:", "grpc+")):
        raise UsageError(
            f"--data must be a directory, got {data}; this command works on its files, so run it "
            f"on the machine of the broker"
        )
    return str(data)


def _words(exc: OSError | UnicodeDecodeError) -> str:
    return "it is not UTF-8" if isinstance(exc, UnicodeDecodeError) else exc.strerror or str(exc)


def _first_line(path: Path) -> str:
    try:
        return path.read_text("utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read {path}: {_words(exc)}") from exc
