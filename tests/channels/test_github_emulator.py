"""The emulator of GitHub is one for GitHub's SDK, and its webhooks are what GitHub publishes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import httpx
import jsonschema_rs
import orjson
import pytest
import pytest_asyncio
from githubkit import AppAuthStrategy, GitHub, OAuthAppAuthStrategy, OAuthWebAuthStrategy, TokenAuthStrategy
from githubkit.cache import MemCacheStrategy
from githubkit.exception import RequestError, RequestFailed
from githubkit.webhooks import parse, verify

from tests.emulators import github_objects as objects
from tests.emulators.github import (
    APP_ID,
    INSTALLATION_ID,
    MAX_BODY,
    TOKEN,
    GitHubEmulator,
    app_key_pem,
    webhook_validator,
)
from tests.emulators.oauth import CLIENT_ID, CLIENT_SECRET

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ADA = objects.user("ada", 583231)


@pytest_asyncio.fixture
async def emulator() -> AsyncIterator[GitHubEmulator]:
    async with GitHubEmulator().serve() as emulator:
        emulator.hook = {"url": "https://plane.example", "secret": "shh"}
        yield emulator


def app_client(emulator: GitHubEmulator) -> GitHub[AppAuthStrategy]:
    # Tokens of another emulator are worth nothing here.
    auth, own = AppAuthStrategy(str(APP_ID), app_key_pem()), MemCacheStrategy()
    return GitHub(auth, base_url=emulator.url, auto_retry=False, cache_strategy=own)


async def test_sdk_reads_the_app_and_writes_comments_as_its_installation(emulator: GitHubEmulator) -> None:
    client = app_client(emulator)
    app = (await client.rest.apps.async_get_authenticated()).parsed_data
    assert app is not None
    assert (app.id, app.slug, app.events) == (APP_ID, "cortex", ["issue_comment"])
    installation = client.with_auth(client.auth.as_installation(INSTALLATION_ID))
    repository = (await installation.rest.repos.async_get("acme", "shop")).parsed_data
    assert repository.private
    comment = (await installation.rest.issues.async_create_comment("acme", "shop", 12, body="one")).parsed_data
    changed = (await installation.rest.issues.async_update_comment("acme", "shop", comment.id, body="two")).parsed_data
    assert changed.body == "two"
    reaction = await installation.rest.reactions.async_create_for_issue_comment(
        "acme", "shop", comment.id, content="+1"
    )
    assert reaction.parsed_data.content == "+1"
    assert [(write.body, write.is_edit) for write in emulator.writes] == [("one", False), ("two", True)]


async def test_sdk_sets_up_the_webhook_and_asks_for_failed_deliveries(emulator: GitHubEmulator) -> None:
    client = app_client(emulator)
    await client.rest.apps.async_update_webhook_config_for_app(
        url="https://plane.example/in", content_type="json", secret="s"
    )
    assert emulator.hook["url"] == "https://plane.example/in"
    await emulator.say("acme/shop#12", "/approve x", ADA)
    (failed,) = (await client.rest.apps.async_list_webhook_deliveries(per_page=5)).parsed_data
    assert (failed.status_code, failed.redelivery, failed.event) == (0, False, "issue_comment")
    await client.rest.apps.async_redeliver_webhook_delivery(failed.id)
    newest, _ = (await client.rest.apps.async_list_webhook_deliveries()).parsed_data
    assert (newest.guid, newest.redelivery) == (failed.guid, True)


async def test_sdk_exchanges_the_code_of_a_login_once_and_gives_the_token_back(emulator: GitHubEmulator) -> None:
    back = "https://plane.example/back"
    emulator.login.redirect_uris.append(back)
    emulator.login.visitor = objects.account("ada", 583231)
    async with httpx.AsyncClient(base_url=emulator.url) as browser:
        asked = {"client_id": CLIENT_ID, "redirect_uri": back, "state": "mine"}
        answer = await browser.get("/login/oauth/authorize", params=asked)
        elsewhere = await browser.get("/login/oauth/authorize", params=asked | {"redirect_uri": f"{back}/too"})
    assert elsewhere.status_code == 400
    code = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
    web = OAuthWebAuthStrategy(CLIENT_ID, CLIENT_SECRET, code, back)
    client = GitHub(web, base_url=emulator.url, auto_retry=False, cache_strategy=MemCacheStrategy())
    user = (await client.rest.users.async_get_authenticated()).parsed_data
    assert (user.id, user.login, user.type) == (583231, "ada", "User")
    again = GitHub(OAuthWebAuthStrategy(CLIENT_ID, CLIENT_SECRET, code, back), base_url=emulator.url, auto_retry=False)
    with pytest.raises(RequestError, match="bad_verification_code"):
        await again.rest.users.async_get_authenticated()
    app = GitHub(OAuthAppAuthStrategy(CLIENT_ID, CLIENT_SECRET), base_url=emulator.url, auto_retry=False)
    (token,) = emulator.login.given_out
    await app.rest.apps.async_delete_token(CLIENT_ID, access_token=token)
    with pytest.raises(RequestFailed):
        await client.rest.users.async_get_authenticated()


async def test_sdk_answers_a_deployment_that_is_held(emulator: GitHubEmulator) -> None:
    emulator.permissions["deployments"] = "write"
    run, webhook = await emulator.hold("acme/shop", "production", ADA)
    held = parse("deployment_protection_rule", webhook.body)
    assert (held.action, held.environment) == ("requested", "production")
    url = str(held.deployment_callback_url)
    assert url == f"{emulator.url}/repos/acme/shop/actions/runs/{run.run_id}/deployment_protection_rule"
    client = app_client(emulator)
    installation = client.with_auth(client.auth.as_installation(INSTALLATION_ID))
    actions = installation.rest.actions
    answer = await actions.async_review_custom_gates_for_run(
        "acme", "shop", run.run_id, environment_name="production", state="approved", comment="Fine."
    )
    assert answer.status_code == 204
    assert run.verdicts == [("approved", "Fine.")]
    with pytest.raises(RequestFailed) as wrong:
        await actions.async_review_custom_gates_for_run(
            "acme", "shop", run.run_id, environment_name="staging", state="approved", comment="Fine."
        )
    assert wrong.value.response.status_code == 404


async def test_sdk_reads_the_owner_of_a_token(emulator: GitHubEmulator) -> None:
    client = GitHub(TokenAuthStrategy(TOKEN), base_url=emulator.url)
    response = await client.rest.users.async_get_authenticated()
    assert (response.json()["login"], response.json()["id"]) == ("robot-of-acme", 77)


async def test_webhooks_are_signed_and_parsed_by_the_sdk(emulator: GitHubEmulator) -> None:
    comment = await emulator.say("acme/shop#12", "/approve x", ADA)
    assert verify("shh", comment.body, emulator.headers_of(comment)["x-hub-signature-256"])
    parsed = parse("issue_comment", comment.body)
    assert (parsed.action, parsed.comment.body, parsed.sender.id, parsed.repository.private) == (
        "created", "/approve x", 583231, True,
    )  # fmt: skip
    assert parse("installation", (await emulator.uninstall()).body).action == "deleted"
    assert parse("installation", (await emulator.uninstall("suspend")).body).action == "suspend"
    parse("ping", (await emulator.ping()).body)


async def test_published_schema_refuses_other_webhooks(emulator: GitHubEmulator) -> None:
    payload = orjson.loads((await emulator.say("acme/shop#12", "hello", ADA)).body)
    del payload["sender"]
    with pytest.raises(jsonschema_rs.ValidationError):
        webhook_validator("issue_comment$created").validate(payload)


@pytest.mark.parametrize(("number", "body", "status"), [(99, "x", 404), (12, "", 422), (12, "x" * (MAX_BODY + 1), 422)])
async def test_it_refuses_what_github_refuses(emulator: GitHubEmulator, number: int, body: str, status: int) -> None:
    client = GitHub(TokenAuthStrategy(TOKEN), base_url=emulator.url, auto_retry=False)
    with pytest.raises(RequestFailed) as refused:
        await client.rest.issues.async_create_comment("acme", "shop", number, body=body)
    assert refused.value.response.status_code == status


async def test_token_of_an_installation_ends(emulator: GitHubEmulator) -> None:
    emulator.token_life = timedelta(seconds=-1)
    client = app_client(emulator)
    installation = client.with_auth(client.auth.as_installation(INSTALLATION_ID))
    with pytest.raises(RequestFailed) as refused:
        await installation.rest.repos.async_get("acme", "shop")
    assert refused.value.response.status_code == 401
