"""hikari, an SDK for Discord, drives the emulator and reads what it sends: the emulator speaks as Discord does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import hikari
import pytest
import pytest_asyncio
from hikari.impl import InteractionServer, RESTApp, RESTClientImpl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.emulators.discord import BOT_TOKEN, DiscordEmulator, Interaction
from tests.emulators.vendor_server import VendorFault, served_on_loopback


@pytest_asyncio.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator().serve() as emulator:
        yield emulator


@pytest_asyncio.fixture
async def rest(discord: DiscordEmulator) -> AsyncIterator[RESTClientImpl]:
    app = RESTApp(url=discord.url)
    await app.start()
    async with app.acquire(BOT_TOKEN, hikari.TokenType.BOT) as client:
        yield client
    await app.close()


class Bot:
    """hikari's server for interactions behind an address."""

    def __init__(self, rest: RESTClientImpl, key: bytes) -> None:
        self.server = InteractionServer(entity_factory=rest.entity_factory, rest_client=rest, public_key=key)
        self.interactions: list[hikari.PartialInteraction] = []
        self.url = ""
        self._listen(
            hikari.ComponentInteraction,
            lambda i: i.build_deferred_response(hikari.ResponseType.DEFERRED_MESSAGE_UPDATE),
        )
        self._listen(hikari.CommandInteraction, lambda i: i.build_deferred_response())
        self._listen(hikari.ModalInteraction, lambda i: i.build_deferred_response())

    def _listen(self, kind: Any, respond: Callable[[Any], Any]) -> None:
        async def note(interaction: Any) -> Any:
            self.interactions.append(interaction)
            return respond(interaction)

        handler: Callable[[Any], Coroutine[Any, Any, Any]] = note
        self.server.set_listener(kind, handler)

    async def handle(self, request: Request) -> Response:
        try:
            signature = bytes.fromhex(request.headers["x-signature-ed25519"])
            timestamp = request.headers["x-signature-timestamp"].encode()
        except (KeyError, ValueError):
            return Response(status_code=400)
        answer = await self.server.on_interaction(await request.body(), signature, timestamp)
        # hikari answers 400 to a bad signature; Discord asks for 401.
        status = 401 if answer.status_code == 400 else answer.status_code
        return Response(answer.payload or b"", status, media_type=answer.content_type)


@pytest_asyncio.fixture
async def bot(rest: RESTClientImpl, discord: DiscordEmulator) -> AsyncIterator[Bot]:
    made = Bot(rest, bytes.fromhex(discord.public_key))
    async with served_on_loopback(Starlette(routes=[Route("/", made.handle, methods=["POST"])])) as origin:
        discord.endpoint = made.url = f"{origin}/"
        yield made


async def test_the_sdk_reads_the_application_and_the_bot(discord: DiscordEmulator, rest: RESTClientImpl) -> None:
    application = await rest.fetch_application()
    assert application.id == int(discord.application_id)
    assert application.public_key.hex() == discord.public_key
    assert (await rest.fetch_my_user()).username == "cortex"


async def test_the_sdk_sends_and_changes_messages(discord: DiscordEmulator, rest: RESTClientImpl) -> None:
    channel = await rest.create_dm_channel(int(discord.user("ada")))
    row = rest.build_message_action_row()
    row.add_interactive_button(hikari.ButtonStyle.SUCCESS, "c1:a:x", label="Approve")
    row.add_link_button("https://plane.example/approvals/7", label="Open")
    sent = await rest.create_message(
        channel, "Approval needed", embed=hikari.Embed(description="Refund"), component=row
    )
    assert sent.embeds[0].description == "Refund"
    (shown,) = sent.components
    assert isinstance(shown, hikari.ActionRowComponent)
    assert [type(button).__name__ for button in shown.components] == ["ButtonComponent"] * 2
    edited = await rest.edit_message(channel, sent, "Approved", components=[])
    assert (edited.content, list(edited.components)) == ("Approved", [])
    assert edited.edited_timestamp is not None
    reply = await rest.create_message(channel, "Reminder", reply=sent)
    assert reply.type is hikari.MessageType.REPLY
    assert reply.referenced_message is not None
    await rest.trigger_typing(channel)
    assert discord.typing == [str(channel.id)]


async def test_the_sdk_reads_its_errors(discord: DiscordEmulator, rest: RESTClientImpl) -> None:
    ada = discord.user("ada")
    channel = await rest.create_dm_channel(int(ada))
    with pytest.raises(hikari.BadRequestError) as too_long:
        await rest.create_message(channel, "x" * 2001)
    assert "content" in (too_long.value.errors or {})
    discord.unreachable.add(ada)
    with pytest.raises(hikari.ForbiddenError) as forbidden:
        await rest.create_message(channel, "Hello")
    assert forbidden.value.code == 50007
    with pytest.raises(hikari.NotFoundError) as unknown:
        await rest.edit_message(channel, 12345, "Hello")
    assert unknown.value.code == 10008
    discord.token = "another"
    with pytest.raises(hikari.UnauthorizedError):
        await rest.fetch_my_user()


async def test_the_sdk_obeys_a_rate_limit(discord: DiscordEmulator, rest: RESTClientImpl) -> None:
    channel = await rest.create_dm_channel(int(discord.user("ada")))
    body = {"message": "You are being rate limited.", "retry_after": 0.01, "global": False}
    headers = {"Retry-After": "1", "X-RateLimit-Bucket": "abcd1234", "X-RateLimit-Scope": "shared"}
    discord.fail(VendorFault(status=429, body=body, headers=headers))
    sent = await rest.create_message(channel, "Hello")
    assert sent.content == "Hello"


async def test_the_sdk_registers_commands(discord: DiscordEmulator, rest: RESTClientImpl) -> None:
    text = hikari.CommandOption(type=hikari.OptionType.STRING, name="text", description="What to say", is_required=True)
    ask = hikari.CommandOption(
        type=hikari.OptionType.SUB_COMMAND, name="ask", description="Write to the agent", options=[text]
    )
    builder = rest.slash_command_builder("cortex", "Talk to an agent").add_option(ask)
    (command,) = await rest.set_application_commands(int(discord.application_id), [builder])
    assert isinstance(command, hikari.SlashCommand)
    assert [option.name for option in command.options or ()] == ["ask"]
    assert discord.commands[0]["options"][0]["options"][0]["required"]


async def test_the_sdk_accepts_its_signature_and_refuses_another(discord: DiscordEmulator, bot: Bot) -> None:
    assert await discord._is_verified(bot.url)
    assert await discord.forge(b'{"type":1}') == 401


async def test_the_sdk_reads_a_press(discord: DiscordEmulator, rest: RESTClientImpl, bot: Bot) -> None:
    ada = discord.user("ada")
    channel = await rest.create_dm_channel(int(ada))
    row = rest.build_message_action_row().add_interactive_button(hikari.ButtonStyle.SUCCESS, "c1:a:x", label="Approve")
    sent = await rest.create_message(channel, "Approval needed", component=row)
    press = await discord.press(ada, discord.messages_to(ada)[0], "Approve")
    (interaction,) = bot.interactions
    assert isinstance(interaction, hikari.ComponentInteraction)
    assert (interaction.custom_id, str(interaction.user.id), interaction.message.id) == ("c1:a:x", ada, sent.id)
    await rest.execute_webhook(
        interaction.application_id, interaction.token, "Approved", flags=hikari.MessageFlag.EPHEMERAL
    )
    assert press.shown == ["Approved"]


async def test_the_sdk_reads_a_press_in_a_server(discord: DiscordEmulator, rest: RESTClientImpl, bot: Bot) -> None:
    deploys = discord.guild_channel("deploys")
    row = rest.build_message_action_row().add_interactive_button(hikari.ButtonStyle.SUCCESS, "c1:a:x", label="Approve")
    await rest.create_message(int(deploys), "Approval needed", component=row)
    await discord.press(discord.user("bea"), discord.history(deploys)[0], "Approve")
    (interaction,) = bot.interactions
    assert isinstance(interaction, hikari.ComponentInteraction)
    assert interaction.member is not None
    assert str(interaction.guild_id) == discord.guild_id


async def test_the_sdk_reads_a_command_and_edits_its_answer(
    discord: DiscordEmulator, rest: RESTClientImpl, bot: Bot
) -> None:
    await test_the_sdk_registers_commands(discord, rest)
    asked = await discord.command(discord.user("ada"), "ask", text="Where is order 7?")
    (interaction,) = bot.interactions
    assert isinstance(interaction, hikari.CommandInteraction)
    assert interaction.command_name == "cortex"
    (verb,) = interaction.options or ()
    (option,) = verb.options or ()
    assert (verb.name, option.name, option.value) == ("ask", "text", "Where is order 7?")
    assert asked.shown == [], "thinking"
    await interaction.edit_initial_response("The agent has it.")
    assert asked.shown == ["The agent has it."]


async def test_the_sdk_reads_a_form(discord: DiscordEmulator, rest: RESTClientImpl, bot: Bot) -> None:
    ada = discord.user("ada")
    text = {"type": 4, "custom_id": "note", "style": 2, "required": False, "max_length": 1000}
    modal = {"custom_id": "c1:d:x", "title": "Deny", "components": [{"type": 18, "label": "Reason", "component": text}]}
    opened = Interaction(
        body=b"", payload={"channel_id": discord.direct_channel(ada)}, response={"type": 9, "data": modal}
    )
    await discord.submit(ada, opened, "too much")
    (interaction,) = bot.interactions
    assert isinstance(interaction, hikari.ModalInteraction)
    assert interaction.custom_id == "c1:d:x"


async def test_the_gateway_of_the_sdk_hears_and_answers(discord: DiscordEmulator) -> None:
    """With compression, a resumed session and an interaction, as a bot of theirs has them."""
    intents = hikari.Intents.DM_MESSAGES | hikari.Intents.GUILD_MESSAGES
    gateway = hikari.GatewayBot(BOT_TOKEN, banner=None, logs=None, rest_url=discord.url, intents=intents)
    texts: asyncio.Queue[str | None] = asyncio.Queue()

    async def hear(event: hikari.MessageCreateEvent) -> None:
        if event.is_human:
            texts.put_nowait(event.content)
            await event.message.respond("Here it is", reply=True)

    async def react(event: hikari.InteractionCreateEvent) -> None:
        assert isinstance(event.interaction, hikari.CommandInteraction)
        await event.interaction.create_initial_response(hikari.ResponseType.MESSAGE_CREATE, "Fine")

    gateway.subscribe(hikari.MessageCreateEvent, hear)
    gateway.subscribe(hikari.InteractionCreateEvent, react)
    ada, room = discord.user("ada"), discord.guild_channel("room")
    async with asyncio.timeout(30):
        await gateway.start(check_for_updates=False)
        try:
            await discord.write(ada, "Where is order 7?")
            assert await texts.get() == "Where is order 7?"
            await discord.gateway.ask_to_reconnect()
            await discord.write(ada, f"<@{discord.bot_id}> and here?", room, mentions=(discord.bot_id,))
            await discord.write(ada, "To somebody else", room)
            assert (await texts.get(), await texts.get()) == (f"<@{discord.bot_id}> and here?", None)
            await discord.gateway.until(lambda: len(discord.gateway.resumed) == 1)
            discord.commands = [{"id": "1", "name": "cortex", "options": [{"name": "status", "options": []}]}]
            asked = await discord.command(ada, "status")
            assert asked.shown == ["Fine"]
        finally:
            await gateway.close()
    answer = discord.messages_to(ada)[0]
    assert (answer["content"], answer["type"]) == ("Here it is", 19)
    assert discord.gateway.sessions == {}, "it said goodbye"
