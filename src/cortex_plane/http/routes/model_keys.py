from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, nothing, reply, reply_all, route
from cortex_plane.tenancy.model.model_keys import ModelKey, ModelKeyDraft, Provider
from cortex_plane.tenancy.verbs import model_keys

router = APIRouter(tags=["models"])


@router.get("/model-keys", response_model=Listing[ModelKey], **route(model_keys.list_all))
async def list_model_keys(db: Db, actor: Caller) -> Response:
    """The org's own keys for model providers: who set them and how they end, never what they are."""
    return reply_all(await model_keys.list_all(db, actor))


@router.get("/model-keys/{provider}", response_model=ModelKey, **route(model_keys.get))
async def get_model_key(db: Db, actor: Caller, provider: Provider) -> Response:
    return reply(await model_keys.get(db, actor, provider))


@router.put("/model-keys/{provider}", response_model=ModelKey, **route(model_keys.put))
async def put_model_key(db: Db, actor: Caller, provider: Provider, draft: ModelKeyDraft) -> Response:
    """Set it, in the place of the one before. It goes before the workers' own, within seconds."""
    return reply(await model_keys.put(db, actor, provider, draft))


@router.delete("/model-keys/{provider}", status_code=204, **route(model_keys.remove))
async def remove_model_key(db: Db, actor: Caller, provider: Provider) -> Response:
    """Within seconds no worker uses it any more."""
    await model_keys.remove(db, actor, provider)
    return nothing()
