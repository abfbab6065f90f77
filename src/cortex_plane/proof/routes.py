"""Routes of proof."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.kernel.routes import ListRoute, Query, Route, filters
from cortex_plane.proof.model import AuditRecord, AuditRoot, Receipt, RootMade, SigningKey, Verification


class ExportQuery(Query):
    session_id: UUID | None = None
    """Only the chain of this session."""


GET_RECEIPT = Route("GET /v1/approvals/{approval_id}/receipt", Receipt)
"""The signed proof of the decision, which verifies without the plane; docs/why/proof.md describes it."""

LIST_AUDIT = ListRoute(
    "GET /v1/audit", AuditRecord, query=filters(session_id=UUID), columns="seq created_at action body hash"
)
"""The chain of a session, or without `session_id` the org's own."""
VERIFY_AUDIT = Route("GET /v1/audit/verification", Verification)
"""Follow every chain and every signed root of the org; names the first bad entry of each, and the first bad root."""
EXPORT_AUDIT = Route(
    "GET /v1/audit/export",
    bytes,
    query=ExportQuery,
    media_type="application/x-ndjson",
    answer="One JSON object a line; docs/reference/audit.md describes them.",
)
"""Every chain of the org, or that of one session, as a file that can be verified without the plane."""
LIST_ROOTS = ListRoute("GET /v1/audit/roots", AuditRoot, columns="seq created_at covers chains hash fingerprint")
"""Signed roots over all chains, newest first."""
MAKE_ROOT = Route("POST /v1/audit/roots", RootMade)
"""A root over everything so far, at once; the newest one where nothing was appended since."""
LIST_SIGNING_KEYS = ListRoute(
    "GET /v1/audit/keys", SigningKey, query=None, columns="id fingerprint public_key created_at retired_at"
)
"""The public keys that receipts and roots are signed with, oldest first. Retired ones stay: what they signed is valid."""
ROTATE_SIGNING_KEY = Route("POST /v1/audit/keys", SigningKey, status=201)
"""A new key signs from now on."""
