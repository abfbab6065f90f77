"""A person writes to an agent over a channel; the plane makes the session and the job. Run it while `make up` runs."""

import asyncio

from cortex_plane import AgentDraft, Client, ConnectionDraft, InboundMessage, KeyDraft, ModelConfig, Role


async def main() -> None:
    async with Client.here() as plane:
        agent = await plane.agents.create(
            AgentDraft(
                name="Release agent",
                slug="release",
                role="DevOps",
                team="main",
                model_config=ModelConfig(model="scripted", system_prompt="Plan releases. Ask first."),
            )
        )
        web = await plane.connections.create(ConnectionDraft(channel_type="web", name="our site"))
        bridge = await plane.keys.create(KeyDraft(name="web bridge", roles=[Role.MEMBER]))

        # The bridge is the program behind the site: it may speak for the people who write there.
        async with Client(plane.url, str(bridge.secret)) as site:
            for event, text in enumerate(["Please ship 2.4.", "And ask before you touch production."]):
                message = InboundMessage(external_user_id="maria", agent=agent.slug, text=text)
                delivery = await site.connections.ingest(web.id, message, idempotency_key=f"event-{event}")
                print("made", delivery.created or "nothing new", "for message", delivery.message_seq)

        session = await plane.sessions.get(delivery.session_id)
        job = await plane.jobs.get(delivery.job_id)
        print(f"session {session.title!r} is {session.status}, its job is {job.status}")
        print("audit trail:", [entry.action async for entry in plane.audit.list(session.id)])
        print("every chain whole:", (await plane.audit.verify()).faults == [])


asyncio.run(main())
