"""Verbs on the cluster that a running broker belongs to."""

from __future__ import annotations

from typing import Final

from siltstone.manage.verb import Document, Nothing, Role, Verb

CLUSTER_VERBS: Final = (
    Verb(name="cluster-status", request=Nothing, response=Document, role=Role.READ, where="broker"),
)
