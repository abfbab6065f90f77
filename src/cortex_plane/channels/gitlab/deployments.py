"""Deployments to protected environments, which GitLab holds until their approval rule is satisfied. The plane gives one of the approvals.

What a webhook says of a deployment is not believed: it is read from GitLab before anybody is asked, and again before a verdict is given. So a
verdict may be given again after an answer was lost, or after its sender died between the approval and the start of the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from cortex_plane.channels import comments
from cortex_plane.channels.gitlab import webhook_events
from cortex_plane.channels.gitlab.api import GitLabApi, success
from cortex_plane.channels.vendor_http import VendorAnswer
from cortex_plane.notify.model import channels
from cortex_plane.notify.model.notifications import DeploymentVerdict, Target, Undeliverable

MAX_COMMENT = 255
OLDEST_DEPLOYMENT = timedelta(days=30)
"""GitLab holds a deployment for ever. So long an event is known; what is older is not looked for, so that nobody is asked twice."""
MOST_LISTED = 100
"""Deployments of one project that are listed at once, the newest first."""
_ADDRESS = re.compile(rf"({webhook_events.PROJECT})/-/deployments/([1-9][0-9]{{0,19}})")
_WAITING = frozenset({"created", "blocked"})
_STARTED = frozenset({"running", "success"})
_TO_APPROVE = (
    "Name the user of this token, or its group, in the approval rule of the environment (GitLab: Settings, CI/CD, Protected"
    " environments), then `cortex delivery resend` the verdict. Or decide at GitLab."
)
_TO_PLAY = (
    "It is approved, and its job waits: add the user of this token to `Allowed to deploy` of the environment, then"
    " `cortex delivery resend` the verdict. Or run the job at GitLab."
)


class GitLabDeployments:
    def __init__(self, api: GitLabApi) -> None:
        self._api = api

    async def confirm(self, target: Target, held: channels.HeldDeployment) -> channels.HeldDeployment | None:
        """The deployment as GitLab has it; None where it waits for no approval, such as a manual job without a rule."""
        path = _project_path(held.arguments["project"])
        project = await self._read(target, path)
        deployment = await self._read(target, f"{path}/deployments/{held.arguments['deployment_id']}")
        if deployment["status"] not in _WAITING or _pending(deployment) == 0:
            return None
        user, job = deployment.get("user") or {}, deployment.get("deployable") or {}
        actor = str(user.get("username", ""))
        arguments = {
            "project": project["path_with_namespace"], "environment": deployment["environment"]["name"],
            "ref": deployment["ref"], "sha": deployment["sha"], "deployment_id": held.arguments["deployment_id"],
            "job": job.get("name"), "event": (job.get("pipeline") or {}).get("source"), "actor": actor,
            "private": project["visibility"] == "private",
        }  # fmt: skip
        sender = channels.ChannelSender(id=str(user.get("id", "")), name=actor, is_bot=webhook_events.is_bot(actor))
        return replace(held, sender=sender, arguments=arguments)

    async def send_verdict(self, target: Target, verdict: DeploymentVerdict) -> None:
        match = _ADDRESS.fullmatch(target.address)
        if match is None:
            raise Undeliverable("A verdict goes to a deployment, `group/project/-/deployments/NUMBER`.", address=True)
        project = _project_path(match[1])
        path = f"{project}/deployments/{match[2]}"
        deployment = await self._read(target, path)
        if deployment["status"] in _STARTED and not verdict.is_allowed:
            raise Undeliverable(
                "The deployment went on before the plane could reject it: somebody approved and started it at GitLab."
            )
        if deployment["status"] not in _WAITING:
            return  # Somebody started it, or it was cancelled: there is nothing left to decide.
        if not verdict.is_allowed and _pending(deployment) == 0:
            raise Undeliverable(
                "The deployment was rejected here, but others approved it at GitLab, which takes no rejection then: cancel its job there."
            )
        state = "approved" if verdict.is_allowed else "rejected"
        if _pending(deployment) > 0:
            # The same verdict of the same user again changes nothing.
            await self._review(target, path, state, _comment(verdict, deployment))
            deployment = await self._read(target, path)
        if verdict.is_allowed and _pending(deployment) == 0:
            await self._play(target, project, path, deployment)

    async def may_read(self, target: Target, project: str) -> bool:
        answer = await self._api.call(target, "GET", f"{_project_path(project)}/deployments?per_page=1")
        return answer.status == 200

    async def list_held(self, target: Target, project: str) -> list[channels.InboundItem]:
        """Deployments of a project that are blocked, for whatever reason."""
        rows = await self._list(target, project, "status=blocked&order_by=id")
        return [_item(project, deployment) for deployment in rows]

    async def list_ended(self, target: Target, project: str) -> list[channels.InboundItem]:
        """Those of the deployments that changed last that GitLab does not hold: perhaps somebody is still asked about one."""
        rows = await self._list(target, project, "order_by=updated_at")
        return [
            webhook_events.ended_item(_item(project, deployment), deployment["status"])
            for deployment in rows
            if deployment["status"] in webhook_events.OVER
        ]

    async def _list(self, target: Target, project: str, query: str) -> list[Mapping[str, Any]]:
        path = f"{_project_path(project)}/deployments?{query}&sort=desc&per_page={MOST_LISTED}"
        since = datetime.now(UTC) - OLDEST_DEPLOYMENT
        return [each for each in await self._read(target, path) if datetime.fromisoformat(each["created_at"]) > since]

    async def _review(self, target: Target, path: str, state: str, comment: str) -> None:
        body = {"status": state, "comment": comment}
        answer = await self._api.call(target, "POST", f"{path}/approval", body)
        _require(answer, _TO_APPROVE)

    async def _play(self, target: Target, project: str, path: str, deployment: Mapping[str, Any]) -> None:
        """Start the job where it still waits. GitLab would run one again that is over, so it is looked at before, and after a refusal."""
        job = deployment.get("deployable")
        if job is None or job["status"] != "manual":
            return
        answer = await self._api.call(target, "POST", f"{project}/jobs/{int(job['id'])}/play")
        if answer.status == 400 and (await self._read(target, path))["deployable"]["status"] != "manual":
            return  # Somebody else started it at the same time.
        _require(answer, _TO_PLAY)

    async def _read(self, target: Target, path: str) -> Any:
        answer = await self._api.call(target, "GET", path)
        if answer.status in (403, 404):
            raise Undeliverable(
                f"This connection may not read {path.partition('?')[0]} at GitLab (HTTP {answer.status}): the project or the deployment"
                " is gone, or the token's user is not at least a Reporter there."
            )
        return success(answer)


def deployment_address(arguments: Mapping[str, Any]) -> str:
    return f"{arguments['project']}/-/deployments/{arguments['deployment_id']}"


def _project_path(project: str) -> str:
    return f"/projects/{quote(project, safe='')}"


def _item(project: str, deployment: Mapping[str, Any]) -> channels.InboundItem:
    return webhook_events.held_item(project, deployment["id"], deployment["environment"]["name"])


def _pending(deployment: Mapping[str, Any]) -> int:
    """How many approvals it still needs. Without Premium there is no such number."""
    return int(deployment.get("pending_approval_count") or 0)


def _comment(verdict: DeploymentVerdict, deployment: Mapping[str, Any]) -> str:
    others = _pending(deployment) - 1
    note = f"{others} more to approve at GitLab; then run the job there." if verdict.is_allowed and others > 0 else ""
    return comments.verdict_comment(verdict, limit=MAX_COMMENT, note=note)


def _require(answer: VendorAnswer, to_do: str) -> None:
    """Raises ``Undeliverable`` with GitLab's words and what to do."""
    try:
        success(answer)
    except Undeliverable as error:
        raise Undeliverable(f"{error.message} {to_do}") from None
