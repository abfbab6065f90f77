from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, nothing, reply, reply_all, route
from cortex_plane.tenancy.model.credentials import ModelKey, ModelKeyDraft, Provider
from cortex_plane.tenancy.verbs import keys

router = APIRouter(tags=["models"])


@router.get("/model-keys", response_model=Listing[ModelKey], **route(keys.list_model_keys))
async def list_model_keys(db: Db, actor: Caller) -> Response:
    """The org's own keys for model providers: who set them and how they end, never what they are."""
    return reply_all(await keys.list_model_keys(db, actor))


@router.get("/model-keys/{provider}", response_model=ModelKey, **route(keys.get_model_key))
async def get_model_key(db: Db, actor: Caller, provider: Provider) -> Response:
    return reply(await keys.get_model_key(db, actor, provider))


@router.put("/model-keys/{provider}", response_model=ModelKey, **route(keys.put_model_key))
async def put_model_key(db: Db, actor: Caller, provider: Provider, draft: ModelKeyDraft) -> Response:
    """Set it, in the place of the one before. It goes before the workers' own, within seconds."""
    return reply(await keys.put_model_key(db, actor, provider, draft))


@router.delete("/model-keys/{provider}", status_code=204, **route(keys.remove_model_key))
async def remove_model_key(db: Db, actor: Caller, provider: Provider) -> Response:
    """Within seconds no worker uses it any more."""
    await keys.remove_model_key(db, actor, provider)
    return nothing()
