from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Annotated, Any

from siltstone.cli.shared_options import takes_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    colour: Annotated[str, "a colour"] = "red"
    size: int = 1


def test_a_command_has_the_options_beside_its_own_and_gets_them_as_one() -> None:
    got: list[Any] = []

    def command(name: str, shared: Shared, *, loud: bool = False) -> None:
        """Do something."""
        got.append((name, shared, loud))

    run = takes_options(command, Shared, "shared")
    assert {name: each.default for name, each in list(signature(run).parameters.items())[1:]} == {
        "loud": False,
        "colour": "red",
        "size": 1,
    }
    assert signature(run).parameters["colour"].annotation == Annotated[str, "a colour"]
    assert run.__doc__ == "Do something."
    run(name="n", colour="blue", size=2, loud=True)
    assert got == [("n", Shared(colour="blue", size=2), True)]
