"""The routes of proof, bound to their verbs."""

from __future__ import annotations

from starlette.responses import Response

from cortex_plane.http.exchange import Binding, Exchange, answer, handle, ordered, whole
from cortex_plane.http.streams import Download
from cortex_plane.proof import routes
from cortex_plane.proof.verbs import audit, receipts, roots


async def export_audit(exchange: Exchange, query: routes.ExportQuery) -> Response:
    chunks = await audit.export_trail(exchange.db, exchange.actor, query.session_id)
    return Download(chunks, str(routes.EXPORT_AUDIT.media_type), "audit.ndjson")


BINDINGS: tuple[Binding, ...] = (
    answer(routes.GET_RECEIPT, receipts.get_receipt),
    ordered(routes.LIST_AUDIT, audit.list_entries, "audit", "above", lambda entry: entry.seq, start=0),
    answer(routes.VERIFY_AUDIT, audit.verify),
    handle(routes.EXPORT_AUDIT, audit.export_trail, export_audit),
    ordered(routes.LIST_ROOTS, roots.list_roots, "roots", "below", lambda root: root.seq),
    answer(routes.MAKE_ROOT, roots.make_root_now),
    whole(routes.LIST_SIGNING_KEYS, receipts.list_signing_keys),
    answer(routes.ROTATE_SIGNING_KEY, receipts.rotate_signing_key),
)
