from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.gates.model import atlases
from cortex_plane.http.exchange import reply
from cortex_plane.jobs.model import checkpoints

router = APIRouter(tags=["schemas"])


@router.get(f"/schemas/checkpoint/v{checkpoints.SCHEMA_VERSION}.json", response_model=dict[str, Any])
async def checkpoint_schema() -> Response:
    """The JSON Schema of a checkpoint, for everybody, as this document is."""
    return reply(checkpoints.schema())


@router.get(f"/schemas/atlas/v{atlases.SCHEMA_VERSION}.json", response_model=dict[str, Any])
async def atlas_schema() -> Response:
    """The JSON Schema of atlas files, for everybody."""
    return reply(atlases.schema())
