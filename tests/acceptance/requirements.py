"""The ledger: each requirement of the specs that is built, tied to the tests that prove it.

A test names what it proves with ``@pytest.mark.proves("S2.4")``. ``test_ledger.py`` checks both directions: every
requirement has a proof, every mark names a requirement. Ids are the spec's number and a running one; D is the design.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True)
class Requirement:
    id: str
    text: str


_R = Requirement
REQUIREMENTS = [
    # Spec 0: the job table
    _R("S0.1", "A job moves only along the edges of the state machine; the database refuses every other pair."),
    _R("S0.2", "0 ≤ retry_count ≤ max_retries ≤ 100; RETRY has a next_retry_at; FAILED has an error_message;"
       " terminal states and only they have finished_at."),
    _R("S0.3", "Every change of a job's status is in its history, with the error, the retry or the approval."),
    _R("S0.4", "A job's payload is immutable."),
    _R("S0.5", "Ids are UUIDv7, made by the application."),
    _R("S0.6", "An error is classed by its HTTP status; transient and infrastructure errors are retried with full jitter"
       " under min(cap, base · 2ⁿ), others fail the job."),
    _R("S0.7", "A worker that is told to stop finishes or hands back its jobs within the grace time."),
    # Spec 1: checkpoints
    _R("S1.1", "The checkpoint is spec 1's blob, field for field, valid under its published JSON Schema."),
    _R("S1.2", "Its CRC-32 is over a canonical form that survives JSONB for every value."),
    _R("S1.3", "It is checked in spec 1's order, with an HMAC of the org beside the CRC."),
    _R("S1.4", "Forward migrations only, one version at a time; a newer version fails the job."),
    _R("S1.5", "A corrupt checkpoint fails the job, is logged with jobId, agentId and corruptionType, and is never"
       " repaired."),
    _R("S1.6", "A step is one response with all its calls resolved; the granularity setting adds writes."),
    _R("S1.7", "A tool listed in side_effect_tools is written before and after its call."),
    _R("S1.8", "A checkpoint above 512 KiB is warned about, one above 1 MiB refused with advice."),
    _R("S1.9", "A prompt that changed between write and resume is noticed, and decided by the agent's setting."),
    _R("S1.10", "A write that fails ends the attempt: nothing goes on without it."),
    # Spec 2: agents, identity, sessions
    _R("S2.1", "An agent has name, slug, status, role, description, model_config, skill_config, resource_limits and"
       " channel_permissions."),
    _R("S2.2", "Slugs are lower-case letters, digits and inner dashes, at least two characters; name and role are not"
       " blank."),
    _R("S2.3", "Names and slugs of agents are unique (in their org)."),
    _R("S2.4", "A DISABLED agent refuses new sessions, existing ones go on; an ARCHIVED one is hidden."),
    _R("S2.5", "An agent with sessions or jobs cannot be deleted; the answer says what uses it."),
    _R("S2.6", "A platform identity maps to exactly one account, also when first messages race."),
    _R("S2.7", "One account may have several identities; all of them reach the same session."),
    _R("S2.8", "A session moves only along the edges of its life cycle; the database refuses every other pair."),
    _R("S2.9", "One open conversation per person and agent."),
    _R("S2.10", "The first message or job makes a CREATED session ACTIVE; a message makes a PAUSED one ACTIVE."),
    _R("S2.11", "Terminating a session cancels its open jobs and is final."),
    _R("S2.12", "A session is titled after its first message, and knows its origin and its last activity."),
    _R("S2.13", "channel_permissions decide over which channels an agent is reached; empty means all."),
    _R("S2.14", "Agents are reached by slug: /agents/{slug}."),
    _R("S2.15", "A changed configuration makes a new immutable version; a job pins the version it started with."),
    # Spec 4: what this part needs of it
    _R("S4.1", "Members have an integer clearance and roles."),
    _R("S4.2", "Every act is on a hash chain, appended in the transaction that it describes."),
    _R("S4.3", "Tenant tables have row-level security, enabled and forced."),
    _R("S4.4", "A pause takes effect at the next message boundary, never in the middle of a call; pending_pause is shown"
       " at once, and pausing twice is pausing once."),
    _R("S4.5", "A resume goes on where the job stopped."),
    # The design
    _R("D.1", "A connection without an org sees nothing; a login that could bypass row-level security is refused."),
    _R("D.2", "Another org's id looks exactly like no id, on every route."),
    _R("D.3", "References between tenant rows are composite (org_id, id)."),
    _R("D.4", "What is found before the org is known goes through listed resolvers that return only (org, id)."),
    _R("D.5", "Each role may call exactly the routes that the table says."),
    _R("D.6", "Keys are hashed, of a person or a service, expire, are revoked at once, and show when they were last used."),
    _R("D.7", "Ingest makes account, mapping, session and job where they are missing, in one call."),
    _R("D.8", "An Idempotency-Key has one effect, also under a race; with another body it is a conflict."),
    _R("D.9", "ETag and If-Match: of two edits of the same revision one wins."),
    _R("D.10", "Teams have one level of parents."),
    _R("D.11", "No request produces a 5xx or an answer outside of the OpenAPI document."),
    _R("D.12", "Bad input gets a 4xx problem with a stable code and a hint, and changes nothing."),
    _R("D.13", "Migrations run once, in order, safely for two starters; edited and unknown ones are refused."),
    _R("D.14", "The committed schema.sql is what the migrations make."),
    _R("D.15", "A tampered, missing or reordered audit entry is found and named; an erased body still verifies."),
    _R("D.16", "Time is the database's, through plane_now()."),
    _R("D.17", "Canonical JSON survives JSONB; what cannot is refused with its path."),
    _R("D.18", "The embedded server never outlives its owner, and restarts after kill -9 of everything."),
    _R("D.19", "The embedded server works or says what to do: locks, disks, paths, versions, users."),
    _R("D.20", "cortex up serves, keeps a key for the command line, and stops cleanly."),
    _R("D.21", "Failed and cancelled jobs are submitted again as new, linked jobs."),
    _R("D.22", "Platform keys act inside an org visibly; unknown people chat only where the org allows it."),
    _R("D.23", "Imports point down only; module names are words of the domain; the public API is frozen."),
    _R("D.24", "Secrets are redacted from logs by pattern; every answer carries a request id."),
    _R("D.25", "Lists are paged by cursor, without gaps or duplicates while rows are added."),
    _R("D.30", "A worker killed with kill -9 under `cortex up` is replaced, and its job finishes untouched."),
    _R("D.31", "A paused job survives a restart of everything and resumes where it was."),
    _R("D.32", "`cortex demo crash` kills a worker in the middle of a side effect and repeats nothing."),
    _R("D.33", "A claim is one statement on the job: runnable, not held, its agent under its exact limit, its app loaded;"
       " orgs take turns, and what was begun goes first."),
    _R("D.34", "Every write of an attempt is fenced by worker and epoch; a write that is sent twice is applied once."),
    _R("D.35", "A dead worker's jobs are adopted; several deaths without progress are poison."),
    _R("D.36", "A call with side effects has its intent before and its outcome after it; an intent refers to its"
       " authorization."),
    _R("D.37", "An uncertain effect is settled as its tool declares: retry_with_key, probe, ask_human, fail; never before"
       " it is safe."),
    _R("D.38", "Killed at any statement, model call or tool call, a job loses nothing and repeats no side effect."),
    _R("D.39", "With all notifications dropped everything still works."),
    _R("D.40", "Iterations, tokens and running time are limited across resumes."),
    _R("D.41", "Bad tools and bad models end in a defined state whose error names the job, the step and the remedy."),
    _R("D.42", "A message that arrives while a job runs is read at the next boundary; none stays unanswered."),
    _R("D.43", "Results over the limit are stored by reference."),
    _R("D.44", "Workers publish tool versions with digests; a job waits for a worker that loaded its app."),
]  # fmt: skip


def proofs() -> dict[str, list[str]]:
    """The tests that carry a mark for each id, as ``path::function``."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for name in _marks(node):
                    found.setdefault(name, []).append(f"{path.relative_to(TESTS.parent)}::{node.name}")
    return found


def _marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The ids in the decorators ``@pytest.mark.proves("…", …)``."""
    return [
        argument.value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.proves"
        for argument in decorator.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
