"""Would a parked job be resumed by the code that is loaded here? The same checks as those of a resume, without one.

Nothing is leased, written or sent, no tool is called, and no MCP server is started: its tools are taken as workers last heard
of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import DEFAULT_APP, PromptChange, SkillSettings, own_settings
from cortex_plane.agents.model.completions import CallRequest, ModelError, ModelRequest, provider_name
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.checkpoints import (
    CheckpointCorrupt,
    CorruptionType,
    Phase,
    Progress,
    missing_checkpoint,
    open_sealed,
)
from cortex_plane.jobs.model.effects import SETTLED, STEP, CallStatus, ToolCall
from cortex_plane.jobs.model.jobs import Finding, JobKind, Parked, PreflightOutcome, Reason, Severity
from cortex_plane.jobs.verbs import workers
from cortex_plane.sessions.rules import requests_of
from cortex_plane.worker.calls import Toolbox, plan_call, toolbox_of
from cortex_plane.worker.code.context import CodeAgent, dry_run
from cortex_plane.worker.code.operations import with_ask
from cortex_plane.worker.code.steps import NEXT_RELEASE
from cortex_plane.worker.gate_code import with_gate_tools
from cortex_plane.worker.lease import prompt_of
from cortex_plane.worker.mcp.connection import McpConnection
from cortex_plane.worker.mcp.remote_tool import recall_tools
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App

_RESUBMIT = "`cortex job resubmit` starts the work again once the job has failed or was cancelled."


@dataclass(frozen=True, slots=True)
class ResumeFault:
    """Why a job cannot be resumed here, or would go on differently. `Finding` adds which job."""

    reason: Reason
    outcome: PreflightOutcome
    message: str
    hint: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """The code, the models and the key of this machine, as a worker here would have them."""

    db: Database
    apps: Mapping[str, App]
    backends: Backends
    master_key: bytes
    replay: bool = False
    """Also run code agents on what they recorded."""

    @classmethod
    async def of(
        cls, db: Database, apps: Sequence[App], backends: Backends, master_key: bytes, *, replay: bool = False
    ) -> Preflight:
        for app in apps:
            for server in app.mcp_servers.values():
                versions = await agents_store.list_server_tools(db, app.name, server.name)
                app.offer(server.name, recall_tools(McpConnection(server), server, versions))
        by_name = {app.name: app for app in (App(DEFAULT_APP), *apps)}
        return cls(db=db, apps=by_name, backends=backends, master_key=master_key, replay=replay)

    async def look(self, org_id: UUID, org: str, job: Parked) -> list[Finding]:
        about: dict[str, Any] = {"org": org, "job_id": job.id, "agent": job.agent, "app": job.app, "status": job.status}
        return [Finding(**about, **dataclasses.asdict(fault)) async for fault in self._faults(org_id, job)]

    async def _faults(self, org_id: UUID, job: Parked) -> AsyncIterator[ResumeFault]:
        progress: Progress | None = None
        if job.checkpoint is not None:
            try:
                progress = open_sealed(
                    job.checkpoint, mac=job.checkpoint_mac, job_id=job.id, agent_id=job.agent_id,
                    key=Vault(self.master_key).checkpoint_key(org_id),
                )  # fmt: skip
            except CheckpointCorrupt as error:
                yield _corrupt_checkpoint(error)
        elif job.response is not None or job.calls:
            yield _corrupt_checkpoint(missing_checkpoint())
        app = self.apps.get(job.app)
        if app is None:
            yield ResumeFault(
                Reason.APP_MISSING,
                PreflightOutcome.WAITS,
                f"Its app `{job.app}` is not among those given ({', '.join(sorted(self.apps))}).",
                "Name it with `--app package.module:app`, or leave a worker that has it running.",
            )
            return
        try:
            skills = SkillSettings.of(job.skill_config)
        except (ValueError, TypeError) as error:
            yield ResumeFault(
                Reason.AGENT_UNREADABLE,
                PreflightOutcome.FAILS,
                f"Version {job.agent_version} of its agent cannot be read: {error}",
                f"Correct the agent with `cortex agent update`. {_RESUBMIT}",
            )
            return
        config = job.model_config
        request = ModelRequest(
            model=config["model"], system_prompt=None, turns=(), tools=(), temperature=None, max_tokens=None,
            settings=config, turn_index=0, org_id=org_id,
        )  # fmt: skip
        try:
            await self.backends.answering(request)  # which backend would answer; nothing is sent
        except ModelError as error:
            yield ResumeFault(Reason.MODEL_MISSING, PreflightOutcome.FAILS, error.message, error.hint)
        if progress is None:
            return
        for fault in _prompt(job, skills, progress, app):
            yield fault
        if skills.run is not None:
            async for fault in self._code(org_id, job, skills, progress, app):
                yield fault
        elif progress.phase is Phase.TOOLS and job.response is not None:
            for fault in _calls(job, with_gate_tools(toolbox_of(app, skills))):
                yield fault

    async def _code(
        self, org_id: UUID, job: Parked, skills: SkillSettings, progress: Progress, app: App
    ) -> AsyncIterator[ResumeFault]:
        """A code agent: its function, the tools that it waits for, and, if wanted, its way to where it stands."""
        function = app.agents.get(skills.run or "")
        if function is None:
            names = ", ".join(f"`{name}`" for name in sorted(app.agents)) or "none"
            yield ResumeFault(
                Reason.RUN_MISSING,
                PreflightOutcome.HELD,
                f"The app `{app.name}` has no code agent `{skills.run}`; it has {names}.",
                "Bring it back under its old name until the job is through; else it is held with `code_changed`.",
            )
            return
        toolbox = with_ask(toolbox_of(app, skills))
        for row in job.calls:
            if row.tool_name == STEP:
                continue  # its function is looked at by a replay
            request = CallRequest(id=str(row.id), name=provider_name(row.tool_name), arguments=row.arguments)
            for fault in _call(request, row, toolbox):
                yield fault
        undeclared: set[str] = set()
        differs = await self._replay_job(org_id, job, progress, function, undeclared) if self.replay else None
        if undeclared and job.repeats_steps:
            names = ", ".join(f"`{name}`" for name in sorted(undeclared)[:10])
            yield ResumeFault(
                Reason.STEP_UNDECLARED,
                PreflightOutcome.GOES_ON,
                f"Steps of its code agent declare nothing, so they run again where a worker dies: {names}.",
                f"{NEXT_RELEASE} Declare `repeatable=True`, or `on_uncertain` for what must not happen twice.",
                Severity.WARNING,
            )
        if differs is not None:
            yield ResumeFault(
                Reason.REPLAY_MISMATCH,
                PreflightOutcome.HELD,
                f"Its code goes another way than it went: {differs}.",
                "Keep the old way for jobs that are on it until they are through; else they are held with `code_changed`.",
            )

    async def _replay_job(
        self, org_id: UUID, job: Parked, progress: Progress, function: CodeAgent, undeclared: set[str]
    ) -> str | None:
        payload = job.payload
        if job.kind is JobKind.CONVERSATION:
            text = await workers.last_message(self.db, org_id, job, progress.message_seq)
            payload = {**payload, "text": text}
        entries, _ = await jobs_store.list_past_entries(self.db, org_id, job.id)
        return await dry_run(
            function, entries, payload, job_id=job.id,
            session_id=job.session_id, agent=job.agent, config=own_settings(job.skill_config),
            fetch=lambda id: workers.parked_result(self.db, org_id, job, id), undeclared=undeclared,
        )  # fmt: skip


def _corrupt_checkpoint(error: CheckpointCorrupt) -> ResumeFault:
    newer = error.corruption_type is CorruptionType.FUTURE_VERSION
    return ResumeFault(
        Reason.CHECKPOINT_NEWER if newer else Reason.CHECKPOINT_CORRUPT,
        PreflightOutcome.FAILS,
        f"{error.message} ({error.corruption_type})",
        "Deploy the release that wrote it, or a newer one: this one fails the job."
        if newer
        else f"A resume fails the job and leaves the checkpoint as it is. Find out what changed it. {_RESUBMIT}",
    )


def _prompt(job: Parked, skills: SkillSettings, progress: Progress, app: App) -> Iterator[ResumeFault]:
    if prompt_of(job.model_config, app)[1] == progress.system_prompt_hash:
        return
    change = skills.on_prompt_change
    message = f"The prompt is not the one that it began with, and its agent says `on_prompt_change: {change}`."
    if change is PromptChange.HOLD:
        hint = "It is held with `prompt_changed`; `cortex job resume` goes on with the new prompt."
        yield ResumeFault(Reason.PROMPT_CHANGED, PreflightOutcome.HELD, message, hint)
    elif change is PromptChange.FAIL:
        hint = f"Let it end on the old code first, or restore the app's instructions. {_RESUBMIT}"
        yield ResumeFault(Reason.PROMPT_CHANGED, PreflightOutcome.FAILS, message, hint)


def _calls(job: Parked, toolbox: Toolbox) -> Iterator[ResumeFault]:
    """The calls of the step that is under way, as a resume would plan them."""
    rows = {call.position: call for call in job.calls}
    for position, request in enumerate(requests_of(job.response or {"calls": []}, rows)):
        row = rows.get(position)
        if row is None or row.status not in SETTLED:
            yield from _call(request, row, toolbox)


def _call(request: CallRequest, row: ToolCall | None, toolbox: Toolbox) -> Iterator[ResumeFault]:
    call = plan_call(0, request, UUID(int=0), toolbox)
    status = row.status if row else "not begun"
    if call.tool is not None:
        if row is not None and row.tool_digest != call.digest:
            yield _changed_tool(row)
        return
    if row is not None and row.status is CallStatus.APPROVED and toolbox.digests.get(row.tool_name) == row.tool_digest:
        return  # an edit that fits the schema and not the tool: the model is told
    has_tool = request.name in toolbox.tools
    yield ResumeFault(
        Reason.ARGUMENTS_REFUSED if has_tool else Reason.TOOL_MISSING,
        PreflightOutcome.HELD,
        f"A call of `{row.tool_name if row else request.name[:100]}` ({status}) cannot be made: {call.error}",
        "Bring the tool back under its old name and parameters until the job is through; else it is held with"
        " `code_changed`.",
    )


def _changed_tool(row: ToolCall) -> ResumeFault:
    what = f"`{row.tool_name}` is not the version that a call ({row.status}) was made for"
    if row.status in (CallStatus.AWAITING, CallStatus.APPROVED):
        return ResumeFault(
            Reason.TOOL_CHANGED,
            PreflightOutcome.ASKED_AGAIN,
            f"{what}: whoever approves that version is asked again about this one.",
            "Nothing need be done; decide it before the deploy, on the old code, to be asked once.",
            Severity.WARNING,
        )
    return ResumeFault(
        Reason.TOOL_CHANGED,
        PreflightOutcome.GOES_ON,
        f"{what}, and it may have been sent: it is settled as `{row.on_uncertain}`, by the new code,"
        " and an approval of the old version does not count.",
        "Look whether the new version settles what the old one sent: its probe, its idempotency key.",
        Severity.WARNING,
    )
