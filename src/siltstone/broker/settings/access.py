"""The settings of users and rights: the files, the hook, and the delays after failed logins."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from siltstone.broker.settings.kinds import Count, HookName, Seconds, Settings, wrong


class AccessSettings(Settings):
    """Users and their rights."""

    password_file: str = Field(
        default="", description="File with users and password hashes. `siltstone passwd` writes it."
    )
    acl_file: str = Field(
        default="", description="File with the topics that each user may publish and subscribe to."
    )
    hook: HookName = Field(
        default="",
        description='Python callable that decides about logins and rights, as "module:callable".',
    )
    login_delay: Seconds = Field(
        default=0.5,
        ge=0,
        le=60,
        description="Delay of the answer to a failed login. Each further failure of the same user "
        "from the same address doubles it.",
    )
    login_delay_max: Seconds = Field(
        default=10.0, ge=0, le=60, description="Longest delay of the answer to a failed login."
    )

    login_failures_max: Count = Field(
        default=10,
        ge=0,
        description="Number of failed logins of a user from one address after which the user is "
        "locked out from there. 0: never.",
    )
    login_lockout: Seconds = Field(
        default=300.0, ge=0, le=86_400, description="Duration of a lockout. 0: no lockout."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.login_delay > self.login_delay_max:
            raise wrong("must not be above login_delay_max", "login_delay")
        return self
