"""The routes of policies, bound to their verbs."""

from __future__ import annotations

from cortex_plane.http.exchange import Binding, answer, ordered
from cortex_plane.policies import routes
from cortex_plane.policies.verbs import policies, simulations

BINDINGS: tuple[Binding, ...] = (
    answer(routes.APPLY_POLICIES, policies.apply_policies),
    answer(routes.GET_POLICIES, policies.get_policies),
    ordered(
        routes.LIST_POLICY_VERSIONS, policies.list_policy_versions, "policies", "below", lambda version: version.version
    ),
    answer(routes.GET_POLICY_VERSION, policies.get_policies),
    answer(routes.EXPLAIN_POLICIES, simulations.explain_policies),
    answer(routes.SIMULATE_POLICIES, simulations.simulate_policies),
)
