"""The settings of users and rights: the files, the hook, and what failed logins cost."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from siltstone.broker.setting_types import Count, HookName, Seconds, Settings, wrong


class AccessSettings(Settings):
    """Who may connect, and what they may do."""

    password_file: str = Field(
        default="", description="File of users and password hashes; see `siltstone passwd`."
    )
    acl_file: str = Field(
        default="", description="File that says who may publish and subscribe to what."
    )
    hook: HookName = Field(
        default="", description='A Python callable that decides, as "module:callable".'
    )
    login_delay: Seconds = Field(
        default=0.5,
        ge=0,
        le=60,
        description="How long the answer to a failed login waits; doubled by each further one of "
        "the same user from the same address.",
    )
    login_delay_max: Seconds = Field(
        default=10.0, ge=0, le=60, description="The longest that it waits."
    )

    login_failures_max: Count = Field(
        default=10,
        ge=0,
        description="Failed logins of a user from an address before it is locked out there; 0: "
        "never.",
    )
    login_lockout: Seconds = Field(
        default=300.0, ge=0, le=86_400, description="How long it is locked out; 0: not at all."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.login_delay > self.login_delay_max:
            raise wrong("must not be above login_delay_max", "login_delay")
        return self
