"""Orgs, teams, members, absences, keys, connections and the caller: routes and their verbs."""

from __future__ import annotations

from starlette.responses import Response

from cortex_plane.http.exchange import Binding, Exchange, Options, answer, handle, reply, throttled
from cortex_plane.http.lists import pages, whole
from cortex_plane.tenancy import routes
from cortex_plane.tenancy.model.access import Me, Permission, Redemption
from cortex_plane.tenancy.verbs import connections, keys, links, logins, orgs


def _sends_mail(exchange: Exchange) -> Options:
    return {"mailing": bool(getattr(exchange.state, "mailing", False))}


def _served_channels(exchange: Exchange) -> Options:
    return {"channels": exchange.state.channels}


async def get_me(exchange: Exchange) -> Response:
    actor = exchange.actor
    actor.require(Permission.ORG_READ)
    return reply(
        Me(
            **{name: getattr(actor, name) for name in ("org_id", "key_id", "kind", "name", "clearance", "platform")},
            roles=sorted(actor.roles),
            member_id=actor.user_account_id,
            permissions=[permission for permission in Permission if actor.may(permission)],
        )
    )


async def redeem_enrolment_code(exchange: Exchange, redemption: Redemption) -> Response:
    return reply(await throttled(exchange, logins.redeem_for_key(exchange.db, redemption)), 201)


DECLARATIONS = (routes,)
BINDINGS: tuple[Binding, ...] = (
    whole(routes.LIST_CHANNELS, connections.list_channels, _served_channels),
    answer(routes.CREATE_CONNECTION, connections.create_connection, _served_channels),
    pages(routes.LIST_CONNECTIONS, connections.list_connections, "connections", _served_channels),
    answer(routes.GET_CONNECTION, connections.get_connection, _served_channels),
    answer(routes.UPDATE_CONNECTION, connections.update_connection, _served_channels),
    answer(routes.CHECK_CONNECTION, connections.check_connection, _served_channels),
    answer(routes.ROTATE_CONNECTION_SECRET, connections.rotate_secret),
    answer(routes.MAP_CONNECTION_MEMBER, connections.map_member),
    handle(routes.GET_ME, orgs.get_org, get_me),
    answer(routes.CREATE_OWN_LOGIN_LINK, logins.issue_own_login_link),
    pages(routes.LIST_OWN_BROWSER_SESSIONS, logins.list_own_sessions, "own_browser_sessions"),
    answer(routes.END_OWN_BROWSER_SESSIONS, logins.end_own_sessions),
    answer(routes.END_OWN_BROWSER_SESSION, logins.end_own_session),
    answer(routes.CREATE_OWN_KEY, keys.create_own_key),
    pages(routes.LIST_OWN_KEYS, keys.list_own_keys, "own_keys"),
    answer(routes.REVOKE_OWN_KEY, keys.revoke_own_key),
    answer(routes.CREATE_ORG, orgs.create_org),
    pages(routes.LIST_ORGS, orgs.list_orgs, "orgs"),
    answer(routes.GET_ORG, orgs.get_org),
    answer(routes.UPDATE_ORG, orgs.update_org),
    answer(routes.CREATE_TEAM, orgs.create_team),
    pages(routes.LIST_TEAMS, orgs.list_teams, "teams"),
    answer(routes.GET_TEAM, orgs.get_team),
    answer(routes.UPDATE_TEAM, orgs.update_team),
    answer(routes.DELETE_TEAM, orgs.delete_team),
    answer(routes.CREATE_MEMBER, orgs.create_member),
    pages(routes.LIST_MEMBERS, orgs.list_members, "members"),
    answer(routes.GET_MEMBER, orgs.get_member),
    answer(routes.UPDATE_MEMBER, orgs.update_member),
    pages(routes.LIST_MAPPINGS, orgs.list_member_mappings, "mappings"),
    answer(routes.CREATE_ENROLMENT_CODE, logins.issue_enrolment_code),
    handle(routes.REDEEM_ENROLMENT_CODE, Permission.LOGIN, redeem_enrolment_code),
    pages(routes.LIST_MEMBER_BROWSER_SESSIONS, logins.list_member_sessions, "browser_sessions"),
    answer(routes.END_MEMBER_BROWSER_SESSIONS, logins.end_member_sessions),
    answer(routes.END_MEMBER_BROWSER_SESSION, logins.end_member_session),
    answer(routes.INVITE_MEMBER, connections.invite, _sends_mail),
    answer(routes.UNLINK_MEMBER_MAPPING, connections.unlink_member),
    pages(routes.LIST_OWN_MAPPINGS, connections.list_own_mappings, "own_mappings"),
    answer(routes.UNLINK_OWN_MAPPING, connections.unlink_own),
    answer(routes.ADD_OWN_ADDRESS, connections.add_address, _sends_mail),
    answer(routes.CREATE_LINK_CODE, links.issue_link_code),
    whole(routes.LIST_LINK_CLAIMS, links.list_own_claims),
    answer(routes.CONFIRM_LINK_CLAIM, links.confirm_link),
    answer(routes.REFUSE_LINK_CLAIM, links.refuse_link),
    answer(routes.REDEEM_LINK_CODE, links.redeem_link_code),
    answer(routes.CREATE_ABSENCE, orgs.create_absence),
    pages(routes.LIST_ABSENCES, orgs.list_absences, "absences"),
    answer(routes.GET_ABSENCE, orgs.get_absence),
    answer(routes.CANCEL_ABSENCE, orgs.cancel_absence),
    answer(routes.CREATE_KEY, keys.create_key),
    pages(routes.LIST_KEYS, keys.list_keys, "keys"),
    answer(routes.GET_KEY, keys.get_key),
    answer(routes.REVOKE_KEY, keys.revoke_key),
    whole(routes.LIST_MODEL_KEYS, keys.list_model_keys),
    answer(routes.GET_MODEL_KEY, keys.get_model_key),
    answer(routes.PUT_MODEL_KEY, keys.put_model_key),
    answer(routes.REMOVE_MODEL_KEY, keys.remove_model_key),
)
