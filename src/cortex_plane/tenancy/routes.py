"""Routes of tenancy."""

from __future__ import annotations

from types import NoneType
from uuid import UUID

from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.routes import ERRORS, ListRoute, Route, filters
from cortex_plane.tenancy.model import access, identities, orgs

CHANNEL_COLUMNS = "id channel_type channel_user_id verified_at"
PROVIDER = {"provider": access.Provider}
SESSION_COLUMNS = "id created_at last_seen_at expires_at key_name"

VENDOR_ERRORS = (*ERRORS, 424)
"""The vendor does not answer."""

CREATE_CONNECTION = Route(
    "POST /v1/connections",
    identities.NewConnection,
    body=identities.ConnectionDraft,
    status=201,
    once=True,
    errors=VENDOR_ERRORS,
)
"""A webhook has a `url`; the answer holds the secret that signs its messages, which is shown once."""
LIST_CONNECTIONS = ListRoute(
    "GET /v1/connections", identities.Connection, columns="id channel_type name account state created_at"
)
GET_CONNECTION = Route("GET /v1/connections/{connection_id}", identities.Connection)
UPDATE_CONNECTION = Route(
    "PATCH /v1/connections/{connection_id}",
    identities.Connection,
    body=identities.ConnectionChange,
    revision=True,
    errors=VENDOR_ERRORS,
)
"""Enabling a connection that the plane disabled by itself lets it be tried anew. Where a value changes, its vendor is asked again."""
CHECK_CONNECTION = Route("POST /v1/connections/{connection_id}/check", identities.Connection, errors=VENDOR_ERRORS)
"""Ask the vendor who the connection is, and set up there what is missing. No secret changes."""
LIST_CHANNELS = ListRoute(
    "GET /v1/channels",
    identities.ServedChannel,
    query=None,
    tag="connections",
    columns="channel_type buttons conversations listens",
)
"""The channels that this plane serves, and what a connection of each needs."""
ROTATE_CONNECTION_SECRET = Route("POST /v1/connections/{connection_id}/rotate-secret", identities.NewSecret)
"""A new secret for a webhook, shown once. The one before it counts for 24 hours more."""
MAP_CONNECTION_MEMBER = Route(
    "POST /v1/connections/{connection_id}/mappings", identities.Mapping, body=identities.MappingDraft, status=201
)
"""Say whose a name in the system behind a webhook is: from then on that member is told there, and decides there."""

GET_ME = Route("GET /v1/me", access.Me)
CREATE_OWN_LOGIN_LINK = Route("POST /v1/me/login-links", access.LoginLink, status=201)
"""A link that logs you in to the dashboard, once and within 15 minutes."""
LIST_OWN_BROWSER_SESSIONS = ListRoute("GET /v1/me/browser-sessions", access.BrowserSession, columns=SESSION_COLUMNS)
"""Where you are logged in."""
END_OWN_BROWSER_SESSIONS = Route("DELETE /v1/me/browser-sessions", access.EndedSessions)
"""Log out everywhere. Login links that were not used yet stop working too."""
END_OWN_BROWSER_SESSION = Route("DELETE /v1/me/browser-sessions/{browser_session_id}", NoneType, status=204)
CREATE_OWN_KEY = Route("POST /v1/me/keys", access.NewKey, body=access.OwnKeyDraft, status=201, once=True)
"""A key of your own. It ends with the key that you make it with; the secret is shown once."""
LIST_OWN_KEYS = ListRoute(
    "GET /v1/me/keys", access.Key, columns="id name last_characters last_used_at expires_at revoked_at"
)
REVOKE_OWN_KEY = Route("POST /v1/me/keys/{key_id}/revoke", access.Key)
"""At once and for good, with the keys that were made with it and the browser sessions that came from them."""

CREATE_ORG = Route("POST /v1/orgs", access.NewOrg, body=orgs.OrgDraft, status=201)
"""Create an org with a first team, and an admin with a key that is shown once."""
LIST_ORGS = ListRoute("GET /v1/orgs", orgs.Org, columns="id slug name created_at")
GET_ORG = Route("GET /v1/org", orgs.Org, tag="orgs")
"""The org of the key."""
UPDATE_ORG = Route("PATCH /v1/org", orgs.Org, body=orgs.OrgChange, revision=True, max_body=MAX_BODY_BYTES, tag="orgs")

CREATE_TEAM = Route("POST /v1/teams", orgs.Team, body=orgs.TeamDraft, status=201, once=True)
LIST_TEAMS = ListRoute("GET /v1/teams", orgs.Team, columns="id slug name parent_id created_at")
GET_TEAM = Route("GET /v1/teams/{team}", orgs.Team)
UPDATE_TEAM = Route("PATCH /v1/teams/{team}", orgs.Team, body=orgs.TeamChange, revision=True)
DELETE_TEAM = Route("DELETE /v1/teams/{team}", NoneType, status=204)
"""Refused while agents or other teams use it; the answer counts them."""

CREATE_MEMBER = Route("POST /v1/members", orgs.Member, body=orgs.MemberDraft, status=201, once=True)
LIST_MEMBERS = ListRoute(
    "GET /v1/members",
    orgs.Member,
    query=filters(role=orgs.Role),
    columns="id display_name roles clearance deactivated_at",
)
GET_MEMBER = Route("GET /v1/members/{member_id}", orgs.Member)
UPDATE_MEMBER = Route("PATCH /v1/members/{member_id}", orgs.Member, body=orgs.MemberChange, revision=True)
"""`active: false` deactivates a person: their keys and sessions end for good, their messages are refused, their
history stays."""
LIST_MAPPINGS = ListRoute("GET /v1/members/{member_id}/mappings", identities.Mapping, columns=CHANNEL_COLUMNS)
"""Where this person can be reached."""
CREATE_ENROLMENT_CODE = Route("POST /v1/members/{member_id}/enrolment-codes", access.EnrolmentCode, status=201)
"""A code for somebody who has no mail here: they redeem it, once and within 24 hours, for a session or a key of their own.
It is shown this once."""
LIST_MEMBER_BROWSER_SESSIONS = ListRoute(
    "GET /v1/members/{member_id}/browser-sessions", access.BrowserSession, columns=SESSION_COLUMNS
)
"""Where this member is logged in."""
END_MEMBER_BROWSER_SESSIONS = Route("DELETE /v1/members/{member_id}/browser-sessions", access.EndedSessions)
"""Log this member out everywhere. Their keys stay; login links that were not used yet stop working."""
END_MEMBER_BROWSER_SESSION = Route(
    "DELETE /v1/members/{member_id}/browser-sessions/{browser_session_id}", NoneType, status=204
)
REDEEM_ENROLMENT_CODE = Route(
    "POST /v1/enrolments",
    access.NewKey,
    body=access.Redemption,
    status=201,
    needs_key=False,
    errors=(400, 401, 413, 422, 429, 503),
    tag="members",
)
"""Redeem an enrolment code for a key. Needs no key. Earlier keys and sessions of the person end."""

INVITE_MEMBER = Route(
    "POST /v1/members/invite",
    identities.Invited,
    body=identities.InvitationDraft,
    status=201,
    once=True,
    tag="identities",
)
"""Add a member and mail them a link that proves their address and logs them in. Sent again for somebody who has not
followed it yet, it only sends the mail again."""
UNLINK_MEMBER_MAPPING = Route(
    "DELETE /v1/members/{member_id}/mappings/{mapping_id}", NoneType, status=204, tag="identities"
)
"""A lost phone, an invitation to the wrong address: whoever writes from it is a stranger from now on."""
LIST_OWN_MAPPINGS = ListRoute("GET /v1/me/mappings", identities.Mapping, tag="identities", columns=CHANNEL_COLUMNS)
"""Where you can be reached."""
UNLINK_OWN_MAPPING = Route("DELETE /v1/me/mappings/{mapping_id}", NoneType, status=204, tag="identities")
ADD_OWN_ADDRESS = Route(
    "POST /v1/me/addresses", identities.Mapping, body=identities.AddressDraft, status=201, tag="identities"
)
"""An address of your own. It counts once you have opened the link that is mailed to it, logged in as yourself."""
CREATE_LINK_CODE = Route("POST /v1/me/link-codes", identities.LinkCode, status=201, tag="identities")
"""A code that links another channel to you: type it there within ten minutes."""
LIST_LINK_CLAIMS = ListRoute(
    "GET /v1/me/link-claims",
    identities.LinkClaim,
    query=None,
    tag="identities",
    columns="id channel_type connection name channel_user_id expires_at",
)
"""Who typed your code on a channel and waits for you to say that it was you."""
CONFIRM_LINK_CLAIM = Route("POST /v1/me/link-claims/{mapping_id}/confirm", identities.Mapping, tag="identities")
"""It was you: what you write there is yours from now on."""
REFUSE_LINK_CLAIM = Route("POST /v1/me/link-claims/{mapping_id}/refuse", NoneType, status=204, tag="identities")
"""It was not you: nothing is linked."""
REDEEM_LINK_CODE = Route(
    "POST /v1/connections/{connection_id}/link",
    identities.Mapping,
    body=identities.LinkDraft,
    status=201,
    tag="identities",
)
"""For a channel's program: somebody typed a code. Their sender is the code's member from now on."""

CREATE_ABSENCE = Route("POST /v1/absences", orgs.Absence, body=orgs.AbsenceDraft, status=201, once=True)
"""Out of office: what is asked of you in this time goes to your delegate, where their clearance allows it.

For somebody else (`member_id`) it takes an admin."""
LIST_ABSENCES = ListRoute(
    "GET /v1/absences",
    orgs.Absence,
    query=filters(member_id=UUID, only_open=bool),
    columns="id member delegate starts_at ends_at status reason",
)
"""Newest first. Staff see everybody's, others their own; `only_open` leaves out what is over or cancelled."""
GET_ABSENCE = Route("GET /v1/absences/{absence_id}", orgs.Absence)
CANCEL_ABSENCE = Route("POST /v1/absences/{absence_id}/cancel", orgs.Absence)
"""Back early. Requests that the delegate has already stay with them."""

CREATE_KEY = Route("POST /v1/keys", access.NewKey, body=access.KeyDraft, status=201, once=True)
"""The secret is shown once; the plane keeps only its digest."""
LIST_KEYS = ListRoute(
    "GET /v1/keys", access.Key, columns="id name kind last_characters last_used_at expires_at revoked_at"
)
GET_KEY = Route("GET /v1/keys/{key_id}", access.Key)
REVOKE_KEY = Route("POST /v1/keys/{key_id}/revoke", access.Key)
"""At once and for good, with the keys that were made with it and the browser sessions that came from them."""

LIST_MODEL_KEYS = ListRoute(
    "GET /v1/model-keys",
    access.ModelKey,
    query=None,
    tag="models",
    columns="provider last_characters set_by updated_at",
)
"""The org's own keys for model providers: who set them and how they end, never what they are."""
GET_MODEL_KEY = Route("GET /v1/model-keys/{provider}", access.ModelKey, path_types=PROVIDER, tag="models")
PUT_MODEL_KEY = Route(
    "PUT /v1/model-keys/{provider}", access.ModelKey, body=access.ModelKeyDraft, path_types=PROVIDER, tag="models"
)
"""Set it, in the place of the one before. It goes before the workers' own, within seconds."""
REMOVE_MODEL_KEY = Route("DELETE /v1/model-keys/{provider}", NoneType, path_types=PROVIDER, status=204, tag="models")
"""Within seconds no worker uses it any more."""
