"""The registry of all management verbs, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from siltstone.errors import UsageError
from siltstone.manage.cluster import CLUSTER_VERBS
from siltstone.manage.databases import DATABASE_VERBS
from siltstone.manage.keyvalues import KEYVALUE_VERBS
from siltstone.manage.rows import ROW_VERBS
from siltstone.manage.sessions import SESSION_VERBS
from siltstone.manage.verb import Host, Verb

VERBS: Final[Mapping[str, Verb]] = {
    verb.name: verb
    for verb in (
        *DATABASE_VERBS,
        *ROW_VERBS,
        *KEYVALUE_VERBS,
        *SESSION_VERBS,
        *CLUSTER_VERBS,
    )
}


def run_verb(host: Host, name: str, request: BaseModel) -> Any:
    """Run a verb on an open store; return its response.

    Raises: UsageError for a verb that only a running broker has; the errors of the verb.
    """
    run = VERBS[name].run
    if run is None:
        raise UsageError(f"{name} needs a running broker; start it with 'siltstone serve'")
    return run(host, request)
