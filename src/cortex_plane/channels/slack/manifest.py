"""The manifest of the Slack app of a connection: what a person pastes at Slack, whole."""

from __future__ import annotations

import json

SCOPES = ("app_mentions:read", "chat:write", "commands", "im:history", "im:read", "im:write")
EVENTS = ("app_mention", "app_uninstalled", "message.im", "tokens_revoked")
COMMAND = "/cortex"


def app_manifest(name: str, inbound_url: str | None) -> str:
    """``inbound_url``: where Slack posts; None for Socket Mode."""
    place = {} if inbound_url is None else {"url": inbound_url}
    request = {} if inbound_url is None else {"request_url": inbound_url}
    command = {
        "command": COMMAND, **place, "description": "new, status, pause, resume, agents, delegate, link, help",
        "usage_hint": "status", "should_escape": False,
    }  # fmt: skip
    return json.dumps(
        {
            "display_information": {"name": name[:35], "description": "Approvals, and conversations with agents"},
            "features": {
                "app_home": {"messages_tab_enabled": True, "messages_tab_read_only_enabled": False},
                "bot_user": {"display_name": name[:80], "always_online": True},
                "slash_commands": [command],
            },
            "oauth_config": {"scopes": {"bot": list(SCOPES)}},
            "settings": {
                "event_subscriptions": {**request, "bot_events": list(EVENTS)},
                "interactivity": {"is_enabled": True, **request},
                "org_deploy_enabled": False,
                "socket_mode_enabled": inbound_url is None,
                "token_rotation_enabled": False,
            },
        },
        indent=2,
    )


def missing_scopes(header: str) -> tuple[str, ...]:
    """``header``: `X-OAuth-Scopes` of an answer; empty where the vendor does not say."""
    scopes = {scope.strip() for scope in header.split(",") if scope.strip()}
    return tuple(scope for scope in SCOPES if scope not in scopes) if scopes else ()
