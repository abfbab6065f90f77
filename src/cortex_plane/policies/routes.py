"""Routes of policies."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.routes import ListRoute, Route
from cortex_plane.policies.model import versions

POLICY_BODY_BYTES = 2 * versions.MAX_FILE_BYTES
"""A whole file in a JSON string, in which some characters are two."""
PolicyVersionPath = Annotated[int, Field(ge=0, le=2**62, description="0 is the org before its first file.")]

APPLY_POLICIES = Route(
    "POST /v1/policies",
    versions.Applied,
    body=versions.PolicyFile,
    once=True,
    max_body=POLICY_BODY_BYTES,
    status_waits="Changes of policies need approval in this org: it waits for a person.",
)
"""The org's rows become those of the file. With `dry_run` nothing is changed, and the answer says what would be.

Where the org's setting `policy_changes` is `approval`, a change is answered with 202: `waits` names the approval that another steward or
admin decides, and until they approve it nothing changes."""
APPLY_PLATFORM_POLICIES = Route(
    "POST /v1/platform/policies", versions.Applied, body=versions.PolicyFile, max_body=POLICY_BODY_BYTES
)
"""The rows that limit every org become those of the file. Needs a platform key; the trail of every org says so."""
GET_PLATFORM_POLICIES = Route("GET /v1/platform/policies", versions.PlatformPolicies)
"""The rows that limit every org. Needs a platform key."""
GET_POLICIES = Route("GET /v1/policies", versions.PolicyVersionDetails)
"""The version that holds now."""
LIST_POLICY_VERSIONS = ListRoute(
    "GET /v1/policies/versions", versions.PolicyVersion, columns="version rows applied_by created_at note digest"
)
GET_POLICY_VERSION = Route(
    "GET /v1/policies/versions/{version}", versions.PolicyVersionDetails, path_types={"version": PolicyVersionPath}
)
EXPLAIN_POLICIES = Route(
    "POST /v1/policies/explain", versions.Explained, body=versions.ExplainRequest, max_body=MAX_BODY_BYTES
)
"""What would be said about a call that nobody made, and why. Nothing is recorded."""
LIST_DENIED_TOOLS = Route(
    "POST /v1/policies/denied-tools", versions.DeniedTools, body=versions.DeniedToolsRequest, max_body=POLICY_BODY_BYTES
)
"""Which tools the policies deny whatever the arguments are, so that nobody need offer them. Nothing is recorded."""
SIMULATE_POLICIES = Route(
    "POST /v1/policies/simulate", versions.Simulation, body=versions.SimulationRequest, max_body=POLICY_BODY_BYTES
)
"""Judges the calls of a time span by a file that is not applied, and says what would change. Nothing is recorded."""
