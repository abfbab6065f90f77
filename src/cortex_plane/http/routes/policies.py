from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, OnceOnly, reply, reply_numbered, route
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.pages import decode_number
from cortex_plane.policies.model.versions import (
    MAX_FILE_BYTES,
    Applied,
    Explained,
    ExplainRequest,
    PolicyFile,
    PolicyVersion,
    PolicyVersionDetails,
    Simulation,
    SimulationRequest,
)
from cortex_plane.policies.verbs import policies, simulations

router = APIRouter(tags=["policies"])

POLICY_BODY_BYTES = 2 * MAX_FILE_BYTES  # a whole file in a string of JSON, in which some characters are two

Version = Annotated[int, Path(ge=0, le=2**62, description="0 is the org before its first file.")]


async def apply_policies(db: Db, actor: Caller, once: OnceOnly, file: PolicyFile) -> Response:
    """The org's rows become those of the file. With `dry_run` nothing is changed, and the answer says what would be."""
    return reply(await policies.apply_policies(db, actor, file, once))


router.add_api_route(
    "/policies",
    apply_policies,
    methods=["POST"],
    response_model=Applied,
    **route(policies.apply_policies, body=POLICY_BODY_BYTES),
)


@router.get("/policies", response_model=PolicyVersionDetails, **route(policies.get_policies))
async def get_policies(db: Db, actor: Caller) -> Response:
    """The version that holds now."""
    return reply(await policies.get_policies(db, actor))


@router.get(
    "/policies/versions", response_model=Listing[PolicyVersion], **route(policies.list_policy_versions)
)
async def list_policy_versions(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    below = decode_number("policies", query.cursor)
    found = await policies.list_policy_versions(db, actor, below, query.limit + 1)
    return reply_numbered("policies", found, query.limit, lambda version: version.version)


@router.get(
    "/policies/versions/{version}", response_model=PolicyVersionDetails, **route(policies.get_policies)
)
async def get_policy_version(db: Db, actor: Caller, version: Version) -> Response:
    return reply(await policies.get_policies(db, actor, version))


@router.post(
    "/policies/explain", response_model=Explained, **route(simulations.explain_policies, body=MAX_BODY_BYTES)
)
async def explain_policies(db: Db, actor: Caller, asked: ExplainRequest) -> Response:
    """What would be said about a call that nobody made, and why. Nothing is recorded."""
    return reply(await simulations.explain_policies(db, actor, asked))


async def simulate_policies(db: Db, actor: Caller, asked: SimulationRequest) -> Response:
    """Judges the calls of a time span by a file that is not applied, and says what would change. Nothing is recorded."""
    return reply(await simulations.simulate_policies(db, actor, asked))


router.add_api_route(
    "/policies/simulate",
    simulate_policies,
    methods=["POST"],
    response_model=Simulation,
    **route(simulations.simulate_policies, body=POLICY_BODY_BYTES),
)
