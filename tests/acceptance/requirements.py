"""The ledger: each requirement of the specs, tied to the tests that prove it or marked as missing.

A test names what it proves with ``@pytest.mark.proves("S2.4")``. ``test_ledger.py`` checks both directions: every
requirement has a proof or is ``missing``, every mark names a requirement. Ids are the spec's number and a running one; D is the
design. ``headings.py`` has the requirements of each heading of the specs.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True)
class Requirement:
    id: str
    text: str
    missing: bool = False
    """Not built, or no test proves it."""


_R = Requirement
REQUIREMENTS = [
    # Spec 0: the job table
    _R("S0.1", "A job moves only along the edges of the state machine; the database refuses every other pair."),
    _R("S0.2", "0 ≤ retry_count ≤ max_retries ≤ 100; RETRY has a next_retry_at; FAILED has an error_message;"
       " terminal states and only they have finished_at."),
    _R("S0.3", "Every change of a job's status is in its history, with the error, the retry or the approval."),
    _R("S0.4", "A job's payload is immutable."),
    _R("S0.5", "Every id of a row is a UUIDv7, whether the application makes it or a statement of the database."),
    _R("S0.6", "An error is classed by its HTTP status; transient and infrastructure errors are retried with full jitter"
       " under min(cap, base · 2ⁿ), others fail the job."),
    _R("S0.7", "A worker that is told to stop finishes or hands back its jobs within the grace time."),
    _R("S0.200", "History says which approvals a job began to wait for, and with the return from it what became of each and who"
       " decided."),
    _R("S0.201", "Whatever changes a job moves its updated_at."),
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
    _R("S1.200", "Any field of a checkpoint with any wrong type, and a checkpoint that is gone, fails the job with its corruption type"
       " in history, log, metric and audit trail, in whatever state the job stands."),
    _R("S1.201", "Whoever reads a checkpoint sees a call as running while its intent is open, and small results until its step is"
       " over."),
    _R("S1.202", "After a denial, an expiry or a cancel the checkpoint says that its job failed, and the call why."),
    _R("S1.203", "A decision about a job whose checkpoint is corrupt decides nothing, fails the job and says so; for others who wait for"
       " the same request it holds."),
    _R("S1.204", "Operators and admins are alerted of a corrupt checkpoint on the channels that they have proven."),
    _R("S1.205", "POST /api/approvals/approve and /deny decide with a token in the body."),
    _R("S1.206", "The canonical form is written down with test vectors, and a script for Node recomputes the CRC of a real job."),
    _R("S1.207", "A job with a checkpoint above 512 KiB logs a warning with its size, and goes on."),
    _R("S1.208", "An agent's token_ttl_seconds holds where no policy that matches names a time, within what may not be exceeded."),
    _R("S1.9", "A prompt that changed between write and resume is noticed, and decided by the agent's setting."),
    _R("S1.10", "A write that fails ends the attempt: nothing goes on without it."),
    _R("S1.11", "A gated call is not skipped by the resume, and its job holds no worker and no lease while it waits."),
    _R("S1.12", "A request goes to the session's owner or to the approvers that its policy names, and to nobody else."),
    _R("S1.13", "A denial fails the job with who and why; nothing of the call is sent."),
    _R("S1.14", "Nobody decided in time: the request expires, its job fails with what to do, a late decision is refused."),
    _R("S1.15", "People have 24 hours unless an agent or a policy says otherwise, and never more than 7 days."),
    _R("S1.16", "A request is decided once, however many decisions are sent at the same instant."),
    _R("S1.240", "Tools and code keep state with their job: it is written with the outcome or operation that set it and with nothing else,"
       " survives death, park and compaction, is bounded, and is shown with the checkpoint and on the job's page."),
    _R("S1.241", "Tools and code read the context of their session and their agent's own settings; the model reads that context where the"
       " agent says so."),
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
    _R("S2.201", "An agent ends its own session; it ends once none of its jobs is open."),
    _R("S2.202", "A session that stays PAUSED for longer than its org lets it ends."),
    _R("S2.203", "A service reads a session into which it brought a message of its person, whichever service opened it."),
    _R("S2.200", "The time of a job bounds its tools too: a call is cut off when it is over."),
    # Spec 3: execute, ask, decide, go on
    _R("S3.1", "/execute on a fresh request: the plane runs it, and the answer does not wait for it."),
    _R("S3.2", "A tool call that needs a decision is recorded and told as `tool_call`; then nothing is held while it"
       " waits."),
    _R("S3.3", "/approve-tool with `approved: true` decides the one call, and the request goes on by itself."),
    _R("S3.4", "/approve-tool with `approved: false` ends the request; the tool is never called."),
    _R("S3.5", "/execute on a request that waits runs nothing that nobody approved: it says what it waits for."),
    _R("S3.6", "text_chunk, tool_call, tool_result and completion are events of the request, in order, kept and"
       " replayed."),
    # Spec 4: what this part needs of it
    _R("S4.1", "Members have an integer clearance and roles."),
    _R("S4.2", "Every act is on a hash chain, appended in the transaction that it describes."),
    _R("S4.3", "Tenant tables have row-level security, enabled and forced."),
    _R("S4.4", "A pause takes effect at the next message boundary, never in the middle of a call; pending_pause is shown"
       " at once, and pausing twice is pausing once."),
    _R("S4.5", "A resume goes on where the job stopped."),
    _R("S4.6", "A call for which policy wants a person suspends its session until the decision, which resumes it."),
    _R("S4.7", "With on_deny continue the model is told, and the same call does not come back."),
    _R("S4.8", "A call may be approved with edited arguments; it runs and is remembered as edited."),
    _R("S4.9", "Identical calls are asked for once, and each is granted by itself."),
    _R("S4.10", "A decision on a held job is kept; only the resume lets the job go on."),
    _R("S4.11", "One operation records decisions, whatever door they come through; who may not is refused, on the trail."),
    _R("S4.12", "A decider needs the clearance that the policy asks for."),
    _R("S4.13", "Under a review template whoever caused the call may deny and not approve it."),
    _R("S4.14", "A decision names the version and the digest that were seen; others than the current ones decide nothing."),
    _R("S4.15", "Edited arguments fit the tool's schema, are denied by no gate and no policy, and stay within the editor's own authority."),
    _R("S4.16", "OK, DUPLICATE and CONFLICT: the same decision again changes nothing, another one is refused."),
    _R("S4.17", "Members see requests of their own sessions and those that name them; for others they do not exist."),
    _R("S4.18", "Every event of a request's life is in approval_event and on the audit chain, from the same commit."),
    _R("S4.19", "Templates have their times: reminder, then expiry; a reminder extends nothing."),
    _R("S4.20", "Deadlines are kept once by any number of schedulers, at most a second late, the oldest first."),
    _R("S4.200", "`pause_pending`, then `session_paused` once it holds, then `session_resumed`: each once, with source, checkpoint,"
       " correlation and time. Receipts say the same; resuming what is not held is `failed_precondition`."),
    _R("S4.201", "A pause holds within its bound: a request to a model is cut and repeated, a call of a tool that is cut is uncertain"
       " and settled as its tool declares."),
    _R("S4.202", "Words of an operator, with a resume or a yes, reach the model at the boundary, marked as theirs; their author is a"
       " cause."),
    _R("S4.203", "AgentStatus is derived from a session and its jobs: INITIALIZING, ACTIVE, SUSPENDED, ERROR, TERMINATED."),
    _R("S4.204", "A member pauses their own session and lifts their own pause, never an operator's."),
    _R("S4.205", "`tool_call` events carry the redacted input, read from where the call is kept."),
    _R("S4.206", "A guest's writing call, where no policy names approvers, goes to the approvers of the agent's team."),
    _R("S4.207", "An org names the channels over which it asks for approvals at all."),
    _R("S4.208", "Over gRPC the credential says who acts, for which org, over which channel and with which clearance; a field that says"
       " otherwise is PERMISSION_DENIED. Terms of a request only tighten."),
    _R("S4.209", "Bad input over gRPC ends with a status and google.rpc details that have the plane's code; nothing runs. A deadline ends"
       " the call whole."),
    _R("S4.210", "A session's stream over gRPC stays open while it is paused, with keepalives, and continues exactly from a cursor."),
    _R("S4.211", "Changes of approvals are followed over gRPC exactly once, in whatever order transactions commit."),
    _R("S4.212", "Over gRPC keys, shares and rates are those of HTTP; a revoked key and the end of the process end streams."),
    _R("S4.213", "gRPC has health and reflection, TLS and mutual TLS; without TLS it opens on loopback addresses only unless told to."),
    _R("S4.214", "The files of `proto/` pass buf's rules and break no client of the last release."),
    _R("S4.30", "The metrics of spec 4, §11, for what exists, under its names; no label holds an id but the tenant's."),
    _R("S4.31", "Each process shows what it counted; suspended sessions are counted for every tenant at the scrape."),
    _R("S4.40", "Sessions are paused and resumed, and approvals decided, over gRPC, also by a client of Node."),
    _R("S4.41", "Approvals are dispatched to Slack and decided there."),
    _R("S4.42", "Approvals are dispatched to the issue of a source code host and decided by a comment there."),
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
    _R("D.70", "A login link works once, for one person, for 15 minutes; fetching it uses nothing up; wrong and used ones are"
       " answered alike, and of two who use one at once one gets in."),
    _R("D.71", "A browser session acts as its member with the roles and clearance of the moment; it ends after 12 idle hours, 7"
       " days, a logout, or with its member."),
    _R("D.72", "The cookie is out of reach of scripts and other sites; of it and of links only digests are kept."),
    _R("D.73", "A form is taken only from the site itself and with the token of its own session."),
    _R("D.74", "The inbox shows first what its visitor may decide; arrivals are announced, and nothing moves under a finger."),
    _R("D.75", "Agent text is inert wherever it is shown; characters that are not seen are shown as code points; arguments are"
       " shown to the end."),
    _R("D.76", "A card is decided as it was rendered: an older version, a later decision and a second thought are told apart;"
       " an edit is shown as a difference before it decides."),
    _R("D.77", "Deciding works on a phone, with keys alone and without scripts; text has the contrast that WCAG asks for."),
    _R("D.78", "The page of a job shows its steps, requests and history as they happen, and waiting for a person in a colour of"
       " its own; whoever may steers it there."),
    _R("D.79", "Pages load nothing from elsewhere and run under a strict policy; vendored scripts are pinned by digest."),
    _R("D.50", "Levels are walked from the most specific to the platform, the first match of each counts; without a match"
       " reading is allowed and the session's owner decides the rest."),
    _R("D.51", "A request only tightens, a final row is not loosened by what is more specific, the platform's match is a"
       " ceiling for effect, clearance and time."),
    _R("D.52", "Templates have spec 4's times; a null inherits from the template, the platform's match, the default."),
    _R("D.53", "Conditions are CEL, checked at apply and bounded; one that fails counts on the safe side."),
    _R("D.54", "Explain tells the walk for a call: rows considered, limits, and where each term came from."),
    _R("D.55", "A verdict asks the database nothing, and its cost does not grow with the number of rows."),
    _R("D.56", "Policies are applied from YAML with a dry run and a difference; what is wrong, unknown or not built yet is"
       " refused with its line, and nothing is changed."),
    _R("D.57", "Approvers who could never decide are refused at apply; a row that never matches is a warning."),
    _R("D.58", "Every applied version is kept and never changes; applies that race are ordered or told; each is audited."),
    _R("D.59", "A job may bring policies of its own, which only tighten; they are kept with it and with its resubmission."),
    _R("D.80", "An export holds every chain of one org, or of one session, as of one moment, and no state, such as checkpoints; it streams in flat"
       " memory."),
    _R("D.81", "An export is bounded, frees its connection as soon as nobody reads it, and is visibly cut if it fails."),
    _R("D.82", "An export verifies without the plane: what was changed, moved, removed or cut off is found and named."),
    _R("D.60", "Events are streamed as server-sent events: their number, their type, one line of JSON; every type is"
       " documented."),
    _R("D.61", "A stream replays exactly what was missed after Last-Event-ID and goes live, without gaps or duplicates,"
       " whatever is appended meanwhile."),
    _R("D.62", "The stream of a job ends with the job, and says so."),
    _R("D.63", "A stream is for those who see its session; what makes no sense as a position is refused."),
    _R("D.64", "A quiet stream is kept alive, and ends soon after its reader's access does."),
    _R("D.65", "A reader that is too slow, or whose server stops, is told where to go on; a server with open streams stops"
       " at once."),
    _R("D.66", "Hints make events come at once; without any they are at most a second late."),
    _R("D.67", "However many streams are open, a process reads each org's events once."),
    _R("D.68", "A stream is measured when it is answered, not when it ends."),
    _R("D.69", "Text chunks are fenced, harm nobody when they cannot be written, and disappear once their step is durable;"
       " a step that is asked again says so."),
    _R("D.90", "Calls of one response are asked for together and decided one by one; they run in the order they were sent."),
    _R("D.91", "A second job of a session joins an open request for the same call; one decision resumes both."),
    _R("D.92", "An approval for another version of the tool is asked for again."),
    _R("D.93", "A deny that was applied after an approval wins."),
    _R("D.94", "A policy that changes between verdict and intent is obeyed."),
    _R("D.95", "A request that nobody could ever decide fails at once, and says who is missing."),
    _R("D.96", "An uncertain effect is a card of its own kind: answered once through either door, never by time."),
    _R("D.97", "As a newcomer: a release stops before it deploys; approved, denied, edited or expired, all four are found in a"
       " verified export."),
    _R("D.100", "Approve, deny, expire, cancel and hold race on the same requests: one outcome each, the job follows it, at"
       " most one effect, everybody else is told; nobody waits for somebody who waits for them."),
    _R("D.101", "The last two approvals of a job, decided at the same instant, resume it, and once."),
    _R("D.102", "Killed at statements all through asking or deciding (at each in `make soak`), a request is asked once and never lost, and a decision is"
       " never consumed without the resume; between the decision and the effect nothing is repeated."),
    _R("D.103", "Deadlines are kept once, the oldest first and at most a second late, by any number of schedulers, also"
       " across a death of the database."),
    _R("D.104", "A conversation in which nobody speaks is paused once, wakes with the next message, and not while a job is"
       " open."),
    _R("D.105", "Deciding, asking and the scheduler find their rows by index: what is merely pending costs nothing."),
    _R("D.106", "The approval lifecycle in the database follows a model of it under random play."),
    _R("D.150", "A token is a version and 43 characters, whichever they are; only its SHA-256 is kept. It decides once as the"
       " person it was sent to, any vote consumes all of theirs, and used again it says what was recorded."),
    _R("D.151", "Forged, cut, expired, used, foreign and newer tokens, and those of people who may not decide any more, get a"
       " clear answer; what cannot be tied to a person is on no chain."),
    _R("D.152", "Links carry spec 4's signature; whatever is changed in one is refused like an unknown request, counted and"
       " logged, and written nowhere."),
    _R("D.153", "GET and HEAD of a link show the card and never decide; a link lives to the deadline of its request, for its"
       " person as they are at that moment."),
    _R("D.154", "A press decides what its own page showed, and nothing without the nonce of that page; what changed meanwhile"
       " is shown and not decided."),
    _R("D.155", "High-risk templates are decided by nothing that was sent in a message alone: the same person is logged in."),
    _R("D.156", "Any number of uses of tokens and links at once are one decision for each person, and all are told the"
       " same."),
    _R("D.157", "Each org signs with a sealed secret that rotates every 90 days and on demand; the old one is accepted for"
       " longer than any deadline, or not at all."),
    _R("D.158", "Tokens and signatures are in no log; a token in a path decides nothing; whoever guesses is stopped."),
    _R("D.159", "A token decides from the command line and in Python, without a key."),
    _R("D.180", "Every member says when they are out of office and who stands in, for others it takes an admin; a delegate"
       " works here, it ends within a year, and both its making and its cancelling are on the org's chain."),
    _R("D.181", "Absences of one person never overlap, and never lead back to whoever is absent, also where people leave at"
       " the same instant."),
    _R("D.182", "Absences are added, listed and cancelled over HTTP, from the command line and in the dashboard."),
    _R("D.183", "A part in a request is handed on over HTTP, from the command line and on the card, to those who could take"
       " it; whatever is refused is said, and changes nothing."),
    _R("D.184", "The card tells the votes, who gave them, when and why, which are void, through whose hands a part went,"
       " how far it escalated and where next, the job's own words as such, and has the receipt of a decision."),
    _R("D.185", "Staff see on the card and on a page of its own what became of each message, and send again what was given"
       " up; nobody else sees addresses."),
    _R("D.186", "Where policy allows it the card offers a standing approval that nobody gives without a tick; all are"
       " listed with what they cover and how often they were used, and are revoked there."),
    _R("D.187", "The inbox marks what was handed to you, what escalated, your own vote, and what somebody was not told."),
    _R("D.188", "All of this works on a phone and without scripts, can be read, and obeys nobody's text."),
    _R("D.160", "A standing approval covers calls of its session, tool and version within each of its bounds: the same"
       " arguments, so many calls, a time, a condition. What is beyond them asks."),
    _R("D.161", "It is never wider than what whoever gave it could approve alone, now: a policy that was tightened, a lost role"
       " or clearance ends it at once, and a deny is never turned."),
    _R("D.162", "It is looked at once more and counted in the transaction that writes the intent, once for each call; the"
       " database itself refuses what it does not cover."),
    _R("D.163", "Calls of one response, and jobs that race for the last of its calls, send exactly as many as it allows."),
    _R("D.164", "From the commit of its revocation on nothing is sent on it, also what was judged before; a revocation tells"
       " how often it was used."),
    _R("D.165", "A call that is sent again needs it to hold still, and is not counted again; what dies before the intent counts"
       " nothing."),
    _R("D.166", "What cannot be given (policy, template, quorum, no bound, a hostile condition) is refused before anything is"
       " decided."),
    _R("D.167", "Standing approvals are seen by staff, by whoever gave them and by their session's owner, and revoked by"
       " whoever gave them, admins and operators."),
    _R("D.168", "They are given, listed and revoked over HTTP, with the client and on the command line."),
    _R("D.169", "They are given, listed and revoked in the browser, where policy allows it."),
    _R("D.140", "A webhook has an https address, or one that the operator listed, and a secret that is shown once, kept sealed"
       " and in no log; after a rotation the one before it counts for a day."),
    _R("D.141", "Signatures are those of Standard Webhooks 1.0, beside the vendor's own library; what is forged, cut off or more"
       " than five minutes off is refused in the same words."),
    _R("D.142", "A message goes to addresses that were checked and to nothing else: every address of a name must be public or"
       " listed, the connection is pinned to them, name and certificate stay the name's, no proxies, no redirects."),
    _R("D.143", "Every version of a card is posted as signed JSON below 20 kB, with an id that is the same for every try, and"
       " without a token; what is cut leads to the whole."),
    _R("D.144", "Any 2xx is a yes and everything else is tried again on the standard's schedule; large, endless, silent and"
       " broken answers cost little and lose nothing."),
    _R("D.145", "A webhook says since when it fails; a success clears it, 410 or five days without one disable it with the"
       " reason, audited, and enabling it lets it be tried anew."),
    _R("D.146", "An event is read after its signature is verified on the raw bytes; who decides is a member whose name there is"
       " verified, with their own authority; forged ones are counted and logged, and change nothing."),
    _R("D.147", "An event decides once, however often and at once it is delivered and wherever the plane dies; whoever sends it"
       " again gets the recorded answer."),
    _R("D.148", "An admin vouches for names on a webhook alone, once, for one person, on the audit trail."),
    _R("D.149", "Webhooks are made, tried, rotated and mapped from the command line; the receiver in the docs works as printed."),
    _R("D.130", "Somebody is invited by mail: a member, an unproven address and a mail in one transaction; its link proves the"
       " address, logs them in and works once; `make up` keeps the mails where the admins of their org read them."),
    _R("D.131", "A link that is forged, cut, old, used or taken back changes nothing and gets one clear page; GET and HEAD on any"
       " link of any mail change nothing, and neither does a form without the nonce of a page."),
    _R("D.132", "An address has one spelling; the same one invited again sends the mail again; what one member has proven"
       " no other gets, and naming an address first keeps it from nobody."),
    _R("D.133", "An address that a member adds counts once its mail was read by whoever is logged in as them."),
    _R("D.134", "An address or a sender that is only claimed is nobody's way in; whoever proves it takes a guest's place."),
    _R("D.135", "A code that a member types on another channel makes its sender theirs, once; guests' senders move, those of other"
       " members do not."),
    _R("D.136", "Codes are short-lived, kept hashed, and work in one place; who guesses is stopped, and nobody else."),
    _R("D.137", "A channel that is given up is a stranger's from then on, and what came over it stays in its history."),
    _R("D.138", "A mail shows the whole card in text and in HTML, threads under the first, says its occasion, carries any script"
       " of the world, and no text in it becomes a header, markup or a line of ours; votes alone are not mailed."),
    _R("D.139", "Mail servers that refuse for now, hang, vanish or lie are tried again, a refused recipient is not; conversations"
       " are kept for a burst and replaced when they break."),
    _R("D.120", "Everybody who may decide a request is told once on every address that they have proven, in the transaction that"
       " asks; a policy may name the channels."),
    _R("D.121", "Whatever a card shows is told when it changes, with its occasion; changes that come close together become one"
       " message, and none is lost while another is on its way."),
    _R("D.122", "One person is told in the order in which things happened; what waits for its next try holds nothing up."),
    _R("D.123", "Two notifiers send everything once and in order, and never share a lane."),
    _R("D.124", "Killed anywhere between taking a message and writing it down, or cut off from the database, a notifier loses"
       " nothing; only what was on its way may come twice."),
    _R("D.125", "What fails is tried again on a schedule; what was given up is visible, is on the audit trail and can be sent"
       " again; a refused address or a receiver that is gone gets nothing more."),
    _R("D.126", "No message shows a secret, at any depth; long arguments are cut with a link, hidden characters are shown."),
    _R("D.127", "Orgs take turns: a burst in one does not delay another's first message, and what is delivered or not yet due"
       " costs nothing."),
    _R("D.128", "Every channel passes one behavioural suite: dispatch, every end, retries, dead letters, redelivery, order, rate limits, an"
       " hour without its vendor, and a connection that is taken away."),
    _R("D.129", "Only what a string may decide carries one: no token for high-risk templates, nothing for uncertain effects or"
       " for who may not decide any more."),
    _R("D.170", "Every decision that ends a request leaves one receipt in its transaction: tool, arguments, card and policy by"
       " digest, who and through whose hands, votes, channel, calls, checkpoint, times of the database."),
    _R("D.171", "A receipt verifies offline with the org's public key; whatever is changed in it is found."),
    _R("D.172", "An approved call is sent only with a true receipt for exactly that call; without one nothing is sent, and the job"
       " and the audit trail say why."),
    _R("D.173", "A signed root covers every chain that grew since the one before, whatever is appended meanwhile, and locks none"
       " of them."),
    _R("D.174", "Roots are made once an hour for each org that appended anything, by any number of schedulers."),
    _R("D.175", "A chain that is missing, cut short or written anew is found by its root, in the database and in an export, and"
       " named."),
    _R("D.176", "A root that is changed, missing, moved or signed by somebody else is found and named."),
    _R("D.177", "An org has one active signing key, made once; admins rotate it, and what the old one signed stays valid."),
    _R("D.178", "Receipts, keys and roots are read and made over HTTP, with the client and on the command line; verifying them"
       " needs no plane."),
    _R("D.110", "A policy says how many must agree, of which roles, on which channels it is told and whether a yes may stand; a"
       " null inherits, the quorum of a limit is a floor, and a limit's no to standing approvals wins."),
    _R("D.111", "It escalates as the policy says, else up the levels to the admins; a template may say once; every step asks"
       " somebody new, none comes before the request, and a final row brings its own."),
    _R("D.112", "A quorum that nobody could ever meet is refused with its line when the file is applied; what does nothing is a"
       " warning."),
    _R("D.113", "A request names its own approvers, action and details, and only tightens: it lowers no quorum, turns no"
       " standing approval on and asks nobody whom its policy does not."),
    _R("D.115", "A simulation judges the calls of a time span by a file that is not applied: it writes nothing, says where it"
       " stopped, and refuses what an apply would refuse."),
    _R("D.116", "What a simulation lists is grouped by tool, agent and change, with counts, examples and what was recorded, and"
       " says which way each change goes."),
    _R("D.190", "A quorum is met by as many people as it says, with the roles it says; one no ends it; nobody votes twice; votes at"
       " the same instant decide once."),
    _R("D.191", "An edit makes earlier votes void, and what runs is what the last version says; a vote counts only while whoever"
       " gave it could still give it."),
    _R("D.192", "A quorum that cannot be met is refused at once, when the policy is applied and when the request is made."),
    _R("D.193", "A part in a request goes from hand to hand with the clearance checked at each, never in a circle, never to"
       " whoever asked, never as a second vote, and shows who had it."),
    _R("D.194", "Whoever is out of office hands their part on by themselves, hop by hop, audited; an absence that cannot help"
       " changes nothing."),
    _R("D.195", "A request goes up level by level, each level once under any number of schedulers, none is leapt over, and the"
       " deadline stays."),
    _R("D.198", "A scanner that fetches every link of every mail with GET, HEAD and a browser, logged in or not, decides"
       " nothing."),
    _R("D.199", "As a newcomer: a person invited by mail is asked by an escalation, hands it on, the quorum is met from two"
       " browsers and a mail, and receipt and roots verify offline."),
    _R("D.200", "However many vote, edit, hand on, escalate, expire and cancel at once, by id, token and link, while messages go"
       " out: one outcome, one vote a person, a quorum of people who could decide, and no deadlock."),
    _R("D.201", "Killed at statements all through (at each in `make soak`) a vote, the last vote, a delegation, an escalation, a token, a link or a standing"
       " approval, all of it happened or nothing did, and who does it again is told the truth."),
    _R("D.202", "Killed at every statement of asking people of whom one is away, a request is asked once, handed on once, and"
       " told to each of the others once."),
    _R("D.203", "Two schedulers and two notifiers bring each escalation, reminder and message once and in order, while the"
       " database dies in the middle of each."),
    _R("D.204", "Only a message that was on its way when its sender lost the database may come twice; its link works once."),
    _R("D.205", "No notifier waits for one message while it holds another: whoever ends several requests is never in a circle"
       " with it."),
    _R("D.206", "Votes, delegation and escalation follow a model of the lifecycle that knows nothing of the database."),
    # Models
    _R("D.210", "Every model backend passes one suite over a real worker: text as it is spoken, calls in order, their results back,"
       " a cancel that does not wait for the end of an answer."),
    _R("D.211", "The providers that tests speak with are taken for real ones by the vendors' own clients, failures included."),
    _R("D.212", "Rate limits, overload, cut streams, broken events, wrong keys and dead addresses are errors that say what to do and"
       " never the key; what may help is tried again, not before the time that the provider wished."),
    _R("D.213", "Calls that cannot be read are answers to the model, none of an answer that was cut off is run, a text that was cut"
       " off is marked, and a refusal fails the job with its reason."),
    _R("D.214", "A worker imports no provider before the first call of that provider."),
    _R("D.215", "Prompt, tools and conversation are cached where the provider can, and what came from the cache is counted."),
    _R("D.216", "Each answer is counted once, with its step or with what came instead, by job, agent, day and model."),
    _R("D.217", "Costs come from a price list that needs no network; an unknown price is said to be unknown."),
    _R("D.218", "Without a key a job fails and says where to put one, unless the agent's script stands in, which the step, its"
       " events and the count say."),
    _R("D.219", "A job's budget of tokens or money is looked at before the call; with a price that nobody knows nothing is asked."),
    _R("D.220", "An agent that spent its budget of the day sleeps until the next day of UTC, and says so."),
    _R("D.221", "An org's own key is sealed, goes before the worker's, is nobody else's, and ends within seconds; the trail says who"
       " set it and never what it is."),
    _R("D.222", "Killed in the middle of a provider's answer and between it and the tools, every act happened exactly once."),
    _R("D.223", "Keys, usage and costs are on REST, the client, the command line and the page of a job."),
    # Signals
    _R("D.255", "A signal wakes every job that waits for its name and key, before or after it was sent; the first payload stays,"
       " another one is a conflict that says what to do."),
    _R("D.256", "A held job hears a signal and goes on when it is resumed, a cancelled one stays cancelled; without a signal a wait"
       " ends with its time, and what comes before the job goes on has come."),
    _R("D.257", "Whoever may submit jobs sends signals, through REST, the client and the command line, within their org; who is"
       " not staff sees their own."),
    _R("D.258", "A signal is kept for 30 days, and as long as an open job has heard it; jobs that a sender could not tell any more are"
       " told by the scheduler."),
    _R("D.259", "Jobs that go to sleep and signals that are sent at the same moment miss each other never: 200 against 200, one"
       " payload wins, senders die at every statement, and nobody waits in a circle."),
    _R("D.270", "An agent that runs elsewhere asks before it acts: authorisation, intent, outcome, events and audit stand in the same"
       " ledger as a worker's, and an allowed call costs two requests and two commits."),
    _R("D.271", "A call elsewhere that needs a person waits by long poll, holds nothing, and begins once with its grant; a denial ends"
       " the call and not the session."),
    _R("D.272", "One key is one call of its agent, whichever session or process asks and however many at once; other arguments under"
       " it are refused."),
    _R("D.273", "Operators hold, resume, cancel and terminate an external session; it is completed only with nothing open; an outcome"
       " counts also after its end."),
    _R("D.274", "Arguments of a call elsewhere are edited only where a schema was given, and must be acknowledged by their digest."),
    _R("D.275", "Policies that changed since a call elsewhere was authorised are asked again when it begins."),
    _R("D.276", "An intent elsewhere without an outcome is settled as it declares, never run again blindly, and after three uncertain"
       " attempts a person is asked."),
    _R("D.277", "No worker claims, adopts or fails the job of an agent that runs elsewhere, however long it lasts."),
    _R("D.278", "That a call elsewhere only reads is a claim: it allows nothing unless a policy looks at it."),
    _R("D.279", "Standing approvals and receipts hold for calls elsewhere; what nobody signed is not sent."),
    _R("D.280", "`plane.guard` puts a function, plain or async, method or not, behind the plane in three lines, and runs it with what"
       " was approved."),
    _R("D.281", "A guarded function that fails, forks, hangs, is cancelled, or has no plane to ask leaves a defined state: what is"
       " unknown is reported so, and without the plane nothing runs."),
    _R("D.282", "A guarded script killed at every request and around its effect, and the API at every statement: nothing repeated,"
       " nothing lost, for every way to settle."),
    _R("D.283", "The job page, the card and the command line show calls of agents that run elsewhere."),
    _R("D.284", "Service keys ask and decide nothing; input of calls elsewhere is bounded; sessions of other kinds and orgs are apart."),
    _R("D.930", "An external session is found or opened by an outside id: one for its agent and the identity that opened it, however many ask"
       " at once; one that ended is not found, and nobody gets the session of another."),
    _R("D.931", "A call elsewhere that is parked because what it called waits is no doubt: its key begins it again under the approval that it"
       " had, as long as that lasts and a bounded number of times, and policies are asked each time. Parking takes back no reported doubt, and"
       " a guarded function parks only where it says so."),
    _R("D.932", "A call under a new key that another process began in this session or an earlier one of its outside id, and of which nobody"
       " knows what became, is that call, also after it is settled and for nobody else; of equal calls in two processes one begins; equal"
       " calls of one process both run."),
    _R("D.933", "Names of foreign tools are mapped to names of the plane, the same every time; two that would share one in a declaration are"
       " refused by both names, and tools of MCP servers take no name outside their own namespace."),
    _R("D.934", "What models took elsewhere is reported once, counted by day, agent, job and model, and spends no budget of the plane's workers."),
    _R("D.935", "Adapters ask by session and call id, async or sync: run, wait, stop, use or doubt; the answer holds after any restart."
       " A run reports whatever becomes of it, and stops where somebody ended its session."),
    _R("D.936", "Whatever goes wrong while an adapter asks, its tool does not run, and the framework gets the reason; a tool may choose otherwise"
       " for a plane that answers nothing about it, and the log says so each time."),
    _R("D.937", "The client waits for a job and watches requests without a busy loop, finds its plane by itself, and works without an event loop,"
       " with one thread that ends whenever it is closed."),
    _R("D.945", "Adapters of LangChain, LangGraph, Pydantic AI, Google ADK and Microsoft Agent Framework pause a call while a person decides, resume it in any process with nothing but"
       " the framework's saved state, run it once with the arguments that were approved, and run nothing without the plane."),
    _R("D.946", "One example for each adapter, without and with the plane, differs in at most five lines, stands on its page, and goes on in"
       " another process after a pause and after a kill in its tool."),
    _R("D.1060", "Agents of every adapter, of hooks and of the MCP gateway are killed before, inside and after the tool, and before an answer is"
       " saved: nothing is repeated in silence, what cannot be known is asked of a person, and no call stays open."),
    _R("D.1061", "What people answered about a lost call is the answer to the next request of another process, also under a new id, once; the"
       " same request after that is another call."),
    _R("D.1100", "What people answered about a lost call is told once, to who asks by a key, also to the process that ran it; a repeated try"
       " has it again, and a look at the call does not use it up."),
    _R("D.1101", "What people said did not happen may be done by a later session of the same outside id, also where its session ended since."),
    _R("D.1102", "A service takes back what it asked for a person, and nothing begins for a person who became a guest."),
    _R("D.1103", "Names of people say nothing about how a call was settled."),
    _R("D.1104", "A task that told its client what people answered is no answer to another call."),
    _R("D.1062", "A tool behind an adapter has the id of its call as idempotency key, and a probe that says whether a lost call happened."),
    _R("D.1000", "The adapter of the OpenAI Agents SDK runs a call only as the plane says, also where the framework calls it approved; a"
       " failure that the model reads as text is reported as one."),
    _R("D.1001", "Agents that are handed over to and agents as tools ask too; a call whose subagent waits is parked, and goes on in any process."),
    _R("D.1002", "Tools of MCP servers ask, copies of an agent stay behind the plane, and tools that the plane would not see are an error at"
       " the start."),
    _R("D.1003", "The plane keeps the state of a run elsewhere with its session: an opaque text of at most 1 MiB, whose every write replaces the"
       " version that was read."),
    _R("D.1004", "Only the identity that opened a session saves its state, and whoever sees the session reads it; it ends with the session, and one"
       " that was changed in the database is refused."),
    _R("D.1005", "A run of the OpenAI Agents SDK goes on in any process with nothing but its session's outside id; of two processes that go on with"
       " one run, the second raises."),
    # Adapters of Google ADK and Microsoft Agent Framework
    _R("D.1010", "Google ADK: a confirmation that was answered too early is requested again, the model is asked when all calls of its answer have a"
       " result, what a tool asks by itself stays its own, and changes of other callbacks are reported."),
    _R("D.1011", "Microsoft Agent Framework: edited arguments are validated and run although an approval is bound to others, what a tool asks by itself"
       " stays its own, a run without a session is an error, and changes of other middleware are reported."),
    _R("D.1063", "Agents of LangGraph, Pydantic AI and OpenAI Agents, a coding agent and an MCP client wait in one inbox under one policy; approved,"
       " denied, edited, expired and killed while it waits, each goes on as decided in a new process, and one trail verifies."),
    # Hooks of coding agents
    _R("D.950", "Hooks of a coding agent ask before each tool: allow, deny with reason, defer, run what an approver made of it; results and"
       " failures are recorded, and whoever repeats an event runs nothing twice."),
    _R("D.951", "Of parallel calls that wait the first is deferred and the others come again, under new ids, as the calls that were approved;"
       " without defer a hook is held."),
    _R("D.952", "A forged caller, an oversized or unreadable event and a plane that is down block the tool, with the reason."),
    _R("D.953", "Codex and Gemini CLI get answers that they obey: no changed arguments where those are not run, keys where calls have no ids."),
    _R("D.954", "A starter policy for each coding agent lets it read and search, and asks for writing, shell and network."),
    _R("D.955", "`cortex hook install` writes the settings beside hooks of others, the same every time, and `uninstall` removes them."),
    # MCP gateway
    _R("D.960", "One gateway fronts MCP servers over stdio and HTTP for clients of both protocol eras: tools, resources and prompts are merged"
       " under stable names, what policy denies outright is hidden, and every call of a tool passes gates, policy, approval, intent and outcome."),
    _R("D.961", "A call that needs a person blocks with progress, then says pending; the later identical call finds its decision, edited"
       " arguments run and the result says so, and clients that can show pages are asked to."),
    _R("D.962", "An MCP server that dies inside a call of the gateway leaves an uncertain call that is settled as declared and never run again"
       " blindly; the other servers go on."),
    _R("D.963", "When a server behind the gateway changes what it offers, clients of both eras are notified."),
    _R("D.964", "Over HTTP the gateway is an OAuth resource server: who calls comes from the key or token alone, tokens for others are refused"
       " with the place of its document, each MCP session is a session, and nothing of the caller's is passed on."),
    _R("D.966", "The gateway passes the protocol's own conformance suite for what it declares."),
    _R("D.965", "The gateway's file is read strictly, and each fault names its line."),
    _R("D.1050", "An agent that runs elsewhere takes a call back before it begins: nobody is asked about it any more and it never runs; against"
       " a decision at the same moment one outcome holds, and nobody but its agent does so."),
    _R("D.1051", "A call through the gateway that waits for a person is a task for clients that declare tasks: it outlives its client and the"
       " gateway, ends as people decide, runs once and only as the tool that was asked about, and is cancelled by its client."),
    _R("D.1052", "A task belongs to the key that made it and to clients that declare tasks, is bounded in number, and expires."),
    _R("D.1053", "Claude Code itself runs what is allowed, what an approver made of a call, and parallel calls in turn; it runs nothing that is"
       " denied, or while the plane is down."),
    _R("D.1090", "A hook asks the one plane that `install` wrote into it, with the key for that plane: no file in the folder of the coding agent, and"
       " no address of a folder that nobody named, gets an answer obeyed or a key sent."),
    _R("D.1091", "What people are shown of a framework's call is what runs, whatever other parts of the framework made of its arguments; a report that"
       " is lost, a tool that hands its call over and a graph that ends in its parent make no second run."),
    _R("D.1092", "A coding agent or a client of the gateway whose session somebody ended does not go on in a new one."),
    _R("D.1093", "A call that a person cleared, or whose arguments an approver changed, is found again under every id that the model gives it: it runs"
       " once more where it did not happen, and not at all while nobody knows."),
    _R("D.1094", "A result that comes late does not settle the attempt of another process."),
    _R("D.1095", "That a tool of a coding agent ran is recorded whatever its result is: large, nested, or with a field named `error`."),
    _R("D.1096", "Texts of others move no hook: neither the reason of a request its wait, nor the name of a host its links."),
    _R("D.1097", "Settings of coding agents are not written through links that a repository brings."),
    _R("D.1098", "Each starter policy asks before a file is read in which the plane's key may stand."),
    _R("D.1099", "Hooks of a session with many calls read only those that may wait for a person."),
    _R("D.1110", "A remote worker goes on after answers of proxies and errors of the plane, and ends with the reason where trying again is of no use."),
    _R("D.1111", "What an org's remote workers publish of their tools changes no other org, and is seen by none; schemas that they bring cost no"
       " process its time."),
    _R("D.1112", "Neither frames, nor answers that nobody asked for, nor their size, take the memory or the time of the process that serves a worker."),
    _R("D.1113", "A job that ends its remote worker each time fails in the end; an API process with remote workers stops within its time."),
    _R("D.1114", "An answer of a remote worker is never lost for what it holds; its tools do not see its key; its clock goes on while it sleeps."),
    # Remote workers
    _R("D.1070", "A worker without a database runs the tools of agents over one outgoing connection; it imports no driver, and gets arguments, and of the"
       " job only what its tools take."),
    _R("D.1071", "Whoever dies, stands still or is cut off, the remote worker or the process of its attempts: nothing is lost, and nothing is done again but"
       " as its tool declares, after it cannot be under way any more."),
    _R("D.1072", "A call that reaches a remote worker late, because it or the message was held up, is not begun; no clocks are compared."),
    _R("D.1073", "A remote worker gets jobs of its key's org and apps alone, and its connection ends at once when its key is revoked."),
    _R("D.1074", "A worker key is for the apps that it names, and does not change the tools of an app that others publish."),
    _R("D.1075", "Messages that no worker may send, broken frames, forged, replayed and foreign answers, and silence change nothing."),
    _R("D.1076", "Places for remote workers are shared between orgs."),
    _R("D.1077", "A worker key opens a link and nothing else; no other key does."),
    _R("D.1078", "`cortex worker` without a database and without an address says both ways."),
    _R("D.1115", "MCP servers of a remote worker's apps run beside it with its environment. Their tools are published as a worker beside the database"
       " publishes them; a call takes its arguments and its key over the link, and no secret of a server leaves the worker."),
    _R("D.1116", "What such a server changes is published before anybody may call it, and the worker calls no version but the one that was judged."),
    _R("D.1117", "The death of such a server in a call leaves it uncertain, settled as declared or confirmed; one that is down stops neither its worker nor"
       " what was approved."),
    _R("D.1118", "A remote worker tells of servers and tools that an app can have, of its own alone, not without end, and of no other version than others"
       " publish."),
    _R("D.1119", "Remote workers run code agents: functions of their app, whose operations the plane journals and judges.", missing=True),
    # MCP tools
    _R("D.260", "Tools of MCP servers from the registry are tools like any other: validated strictly, approved, run once, in the"
       " ledger and the audit trail."),
    _R("D.261", "An MCP server is declared in code alone, gets only the secrets that are named, and their values appear in no log,"
       " error, result or row; a missing one stops the worker with its name."),
    _R("D.262", "A tool that cannot be named, told apart or checked is left out and said so; two servers that models would mix up"
       " are refused."),
    _R("D.263", "A server's tool that changes is published as a new version and seen as changed: what was approved is asked again, what"
       " is gone holds the job as code_changed."),
    _R("D.264", "A server that dies, hangs, floods, babbles or breaks the protocol in a call leaves it uncertain and comes back; what it"
       " says itself is known; nothing of it is unbounded."),
    _R("D.265", "A server that is down stops neither the worker nor what was approved, is tried again, is seen with its reason, and no"
       " process of it outlives its worker."),
    _R("D.266", "A server's hints are believed by nobody: a tool has side effects until a steward of the org confirms this very version,"
       " visibly and revocably."),
    _R("D.267", "A confirmation counts from the next verdict on, and a call that was planned under an older one is not sent."),
    _R("D.268", "Servers elsewhere are reached over streamable HTTP with secret headers, refused tokens and lost connections are named,"
       " and answers are bounded."),
    _R("D.269", "A worker killed before, in or after the call of an MCP tool neither repeats nor loses it, by the count of the outside"
       " world."),
    _R("D.230", "What a call of the model is told keeps to its budget and its order: no tool call is parted from its results, the newest"
       " user turn is always in it, and every turn is in it or covered by the memory."),
    _R("D.231", "Near the budget the model writes a summary and facts, checked strictly; a malformed one is asked for once more, then"
       " replaced by an extract, and no job fails of it."),
    _R("D.232", "Turn 200 of a conversation (500 in `make soak`) reads as many rows and sends as many bytes as turn 50, and misses nothing."),
    _R("D.233", "A long job keeps neither in memory nor in its window what was summarised, and never forgets what it was asked."),
    _R("D.234", "A resumed job reads only what its memory does not cover, is asked exactly what it was asked before, and still knows"
       " every no that it was told."),
    _R("D.235", "What is said while a job runs, waits for a person, sleeps or compacts is heard by its model at the next boundary."),
    _R("D.236", "A worker killed at every point of a compaction loses no message and no fact, and makes no summary twice."),
    _R("D.237", "What is remembered is on REST, the client, the command line and the page of the job, as data and escaped, for those who"
       " may see the session."),
    _R("D.238", "A memory is told to the model as labelled data below its system prompt, and cannot grow without bound."),
    _R("D.239", "An agent elsewhere that names a webhook of its org is told there of each decision about its call, denied, expired and"
       " cancelled too: signed, at least once under one id, however long the receiver was away; it never names an address."),
    _R("D.285", "`cortex doctor preflight` names every parked job of every org that the code loaded here cannot resume, with the reason"
       " and what to do; it ends with 0 for none, 1 for some, 2 where it could not look."),
    _R("D.286", "Preflight changes no row, in pages of bounded memory, over a hundred parked jobs of every kind."),
    _R("D.287", "What preflight says of a parked job is what becomes of it under the new code: goes on, is asked again, is held, waits"
       " or fails."),
    _R("D.288", "Each example runs as its README says, with one command and no key, on a plane of its own, and says which model answered."),
    _R("D.289", "A key in the environment switches an example to its provider, and nothing else changes."),
    _R("D.290", "A code agent whose worker is killed in a step goes on in another one; nothing that was recorded is repeated."),
    _R("D.291", "With `--replay` preflight runs code agents on what they recorded, performs nothing, and names the first operation that"
       " differs."),
    # Agents written as code
    _R("D.240", "An agent may be an `async` function of its app; what cannot run is refused when it is declared, and an agent's"
       " `run` when it is written."),
    _R("D.241", "Each operation of a code agent has an entry in its job's journal, keyed by branch, name and occurrence; what was"
       " recorded is given back and never done again."),
    _R("D.242", "A code agent's tools go through the same door, ledger and settling as a model's; a failure, a denial and an uncertain"
       " effect are told apart."),
    _R("D.243", "A step's failure is recorded where the agent goes on; where it does not, the job is tried again and the step runs"
       " again."),
    _R("D.244", "The journal is read over HTTP, in the client, on the command line and on the job's page, by whoever sees the job."),
    _R("D.245", "A code agent asks its model within the agent's limits; the answer is recorded before it is given."),
    _R("D.246", "Branches run at once and go as far as they can; what they ask of people is asked in one write."),
    _R("D.247", "A code agent that sleeps or waits for a signal holds no worker; it goes on at the earliest time, with the signal, or"
       " is told that none came."),
    _R("D.248", "Code that differs from what was recorded puts its job on hold with what was expected and what came; nothing is"
       " written or run, and it goes on once the code is right again."),
    _R("D.249", "What takes a function back is not caught by `except Exception`; code that swallows it is put on hold."),
    _R("D.250", "A deploy with changed code and 100 parked jobs (1,000 in `make soak`): all go on or are on hold with a reason, and none fails."),
    _R("D.251", "A code agent killed at every write, step and act, and so is whoever goes on: every act of every kind happens once,"
       " and nothing is lost."),
    _R("D.252", "What a code agent does that cannot be recorded fails its job with what to correct; its context works nowhere else."),
    _R("D.253", "Cancel, pause and a stopping worker take effect between two operations; a function that never returns runs out of"
       " its time."),
    _R("D.254", "A dry run tells whether code fits a journal, and performs nothing."),
    # Atlases as versions, and what is bound to them
    _R("D.300", "Spec 5's complete example loads as it is written, with a warning for each action that it does not declare; a copy that"
       " declares them ships without a warning."),
    _R("D.301", "Every type of trigger is read with its own keys and its priority of spec 5's table; keyword and keyword_match,"
       " capability_access and capability_gate are the same."),
    _R("D.302", "A checkpoint says its mode, audience, attempts, guidance, contexts, capabilities, actions, trace and priority."),
    _R("D.303", "Questions of all six types are read with their validations, hints, options, schemas and on_invalid."),
    _R("D.304", "The inject modes of contexts (always, on_match, on_demand, risk_based) make gates."),
    _R("D.305", "checkpoint_config makes the same gates, with `a|b` keywords, `delete_*` actions, confirmation, policy check, synchronous"
       " trace and budget; what is not enabled makes none."),
    _R("D.306", "An atlas's policies and actions are read with limits, templates, risk tiers and parameter schemas."),
    _R("D.307", "A capability that a gate unlocks or stands before begins locked; every other begins open."),
    _R("D.308", "Undeclared actions, actions that nothing allows, capabilities that stay locked, effects that come too late, questions for"
       " credentials and notices to nobody are warnings with their lines."),
    _R("D.309", "The same content has the same manifest, digest and atlas, in YAML or JSON, in whatever order, with whatever comments."),
    _R("D.310", "Unknown keys are refused with file, line and the nearest valid key, and wrong types with what belongs there."),
    _R("D.311", "Duplicate ids, dangling references, expressions that could take for ever, schemas that reach outside and combinations"
       " that cannot work are refused with their lines."),
    _R("D.312", "The JSON Schema of atlas files is made from what reads them: both accept and refuse the same, where a schema can tell."),
    _R("D.313", "Every key of an atlas file is documented."),
    _R("D.314", "JSON and YAML are read strictly: anchors, aliases, tags, bombs, second documents, repeated keys, depth and what cannot be"
       " stored are refused with their line."),
    _R("D.315", "Atlas files have limits of size, values, gates and contexts; 2,000 gates are read and compiled."),
    _R("D.316", "Whatever tree or damaged file comes, it is an atlas or it is refused."),
    _R("D.317", "`cortex atlas validate` reads files without a plane and tells counts, warnings and faults, with exit codes and as JSON."),
    _R("D.318", "The JSON Schema of atlas files is served to everybody and printed by `cortex atlas schema`."),
    _R("D.320", "Stewards and admins publish atlases over REST, client and command line; what is wrong changes nothing and is named with"
       " its line; every org has its own."),
    _R("D.321", "A published version never changes: the same content again is answered as it was, other content is refused."),
    _R("D.322", "Versions of one atlas that are published at once get numbers of their own, and the same one is published once."),
    _R("D.323", "A retired version binds no new session, and makes way for the newest one that is left; publishing and retiring are on the"
       " org's audit chain."),
    _R("D.324", "Two versions are compared: which gates, questions, contexts, capabilities, policies and actions came, went or changed, field"
       " by field."),
    _R("D.325", "Every door that opens a session or makes a job binds it to the newest version that holds of each atlas that its agent names;"
       " what a session is bound to stays, and is shown with it."),
    _R("D.326", "Where no version of such an atlas holds, nothing begins at any door, and the refusal says what to do."),
    _R("D.327", "An agent names only atlases of which a version holds."),
    _R("D.328", "A request may bind its session to more atlases; where it is governed already only stewards and admins add one."),
    _R("D.329", "Sessions that open while versions are published and retired are bound to exactly one that held, and once."),
    _R("D.330", "An atlas for authenticated access keeps guests out, at every door and at each message."),
    _R("D.331", "An atlas that names keys is used with keys of these names alone; whoever comes in a browser or over a channel has none."),
    _R("D.332", "Compiled atlases are loaded once by however many ask, kept within bounds, and never used where they are not what was"
       " published."),
    _R("D.333", "A steward's limit of calls in a minute is counted exactly over all sessions, in the write that sends them; over it nothing of"
       " the write happens."),
    _R("D.334", "Minutes that no limit counts any more are forgotten, in every org."),
    _R("D.335", "A steward is told of what they asked for about their own atlas, without answers and arguments."),
    _R("D.336", "What a steward is told is written with what it tells, and arrives signed and in order at the webhook of the org that has the"
       " address of the file, and nowhere else."),
    # Gates around agents that run elsewhere, and resolutions.
    _R("D.380", "A call elsewhere that a gate asks about is answered with its questions and is not written: answered, the same call with"
       " the same key goes on, once. The start of a session asks before anything else."),
    _R("D.381", "Answers are checked and counted: wrong ones are tries, an accepted one told twice is answered the same, and out of tries the"
       " call is refused for good or the session ends with the reason."),
    _R("D.382", "Only the gates of agents that run elsewhere are answered over the API, and only by who may ask in their sessions."),
    _R("D.383", "Gates and policies both speak of a call elsewhere and the stricter holds; a gate for people is a card with its questions."),
    _R("D.384", "What was allowed is judged again when it begins; calls and answers at once use a pass, a try and a gate exactly once."),
    _R("D.385", "Limits are used up by running and never by asking; what is sent again is neither asked about nor counted twice."),
    _R("D.386", "Custom triggers and validators are not loaded in the API: their gates stay shut there, and say why."),
    _R("D.387", "The permissions of any session are visible over REST, client and command line, with what did each; the ends of calls and of"
       " sessions fire their gates."),
    _R("D.388", "A resolution tells what may be done, with contexts, allowed and denied actions and why, constraints, questions, its time and"
       " its trace id, by gates and policies together; also where no atlas governs."),
    _R("D.389", "Keyword gates hear the goal of a resolution, each goal once."),
    _R("D.390", "Executing needs a resolution that holds when the call is written, covers it, and was made under the same atlases; executions"
       " at once use a limit up exactly."),
    _R("D.391", "A resolution is for who asked, a report for calls under it; bad requests leave nothing, and old ones are forgotten."),
    _R("D.392", "The client resolves, answers, executes and reports, and raises GateClosed with the questions."),
    _R("D.393", "A guard answers gates from what is written down or by a function, and raises GateClosed otherwise; nothing ran then."),
    _R("D.394", "The API or the agent killed anywhere between question, answer and call: nothing is repeated, lost, or passed twice."),
    # Gates, as people see them
    _R("D.395", "`cortex job watch` tells what gates ask, hear, pass, stop and leave out in a line of plain words each, as it happens."),
    _R("D.396", "`cortex demo gates`, one command after `cortex up`, shows each mode of a gate and one for a person; its acts happen once."),
    _R("D.397", "A job's page shows what gates did, on its timeline and as a list, without a reload."),
    _R("D.398", "A job's page says what it may do now: each action and which gate, policy or capability did it, capabilities, limits,"
       " questions that wait, and what it is told."),
    _R("D.399", "The card of a gate for people names the gate and its questions above the arguments, wherever it is shown; the inbox marks it."),
    _R("D.400", "Staff read atlases in the browser: versions, gates, warnings, who published them, and what one has otherwise than another."),
    _R("D.401", "What stewards and agents wrote is text on every page and line about gates: escaped, with hidden characters shown, on a phone"
       " too."),
    _R("D.402", "Events and facts of gates have the same five names, and are documented."),
    # Costs
    _R("D.410", "A step, an approval request, a decision, a guarded call, a message and a claim stay within their budgets of round"
       " trips, commits, rows, log bytes, sequential scans and Python calls."),
    _R("D.411", "`pip install cortex-plane` is the client, the guard and the remote commands; whatever needs more names the extra in one"
       " line."),
    # Gates around every agent that a worker runs.
    _R("D.360", "A call that a gate stops is refused with the gate's questions, is written down, traced under spec 5's names on the"
       " session's chain and told in events of the same names; after a valid answer the same call runs."),
    _R("D.361", "All calls of a response are judged by what held before it: an answer counts from the next response on, a pass is for one"
       " call with exactly its arguments, and calls on their way use up a pass each."),
    _R("D.362", "Questions of the session are the last thing the model reads; guidance and contexts are part of its system prompt; the"
       " window has room for both, compacting leaves them alone, and a session without an atlas is told nothing of gates."),
    _R("D.363", "While a gate of the session asks, a text ends nothing and other calls are refused: each such response is a try, and out of"
       " tries the job fails with the reason, as does every later job of the session."),
    _R("D.364", "Nothing that a model says opens a gate but a valid answer to a question that it was asked: forged unlocks, other names,"
       " extra arguments and tools with the plane's names are refused."),
    _R("D.365", "Capability gates open until they are locked, several gates before one call are all passed, advice goes to the prompt and"
       " observation to the trail alone."),
    _R("D.366", "Budgets and rate limits are used up by calls that run, also by several of one response, and never by asking."),
    _R("D.367", "Whatever a call uses up is written in the commit that has its intent, or the result of a call that only reads."),
    _R("D.368", "An agent asks for what its stewards wrote down by its name, and has it from its next request on."),
    _R("D.369", "Gates of the end look on when a session is terminated: once, in the transaction that ends it."),
    _R("D.370", "A trace with `force_sync_trace` is durable before the model is asked and before a call is sent."),
    _R("D.371", "A gate for people becomes an approval of the call, or of the session's first call, whose card shows the gate's questions;"
       " approving it passes the gate."),
    _R("D.372", "Gates, then policies, and the stricter verdict holds; policies see the higher risk; where a gate or an atlas wants a person,"
       " no standing approval speaks for them."),
    _R("D.373", "A hold, a cancellation or a decision between question and answer changes nothing of what gates remember, and what was"
       " approved is judged by its gates again."),
    _R("D.374", "Apps register triggers and validators for gates, sync or async; what cannot be one is refused where it is declared."),
    _R("D.375", "A trigger or validator that is missing, late, raises or answers nonsense opens nothing: blocking gates fire, what other gates"
       " forbid is forbidden and they are skipped on the trail, answers are not accepted."),
    _R("D.376", "A code agent hears of a gate by `GateClosed` with its questions, answers with `ctx.answer`, and gets the same again when it"
       " goes on; its branches need a pass each; it does not end while a gate of the session asks."),
    _R("D.377", "Jobs of one session share its gates: whoever was overtaken looks again, and what one pass or one limit allows happens"
       " once; a steward's limit of a minute makes a job wait."),
    _R("D.378", "Killed at any commit between question and answer, a job goes on at the question: no gated effect happens without its pass,"
       " what is sent again is charged once, and gates that cannot be read are not gone around."),
    _R("D.379", "No sequence of a model's responses runs a gated action without its gate passed, by the ledger and by the chain."),
    # How gates are evaluated
    _R("D.337", "A step that does not say that it may be repeated is written before and after and settled as it declares, by default by a"
       " person: however its worker dies and whatever it raises, it is never run twice blindly."),
    _R("D.338", "Steps that declare nothing, of agents that an earlier release made, are repeated for one release: a log line names each,"
       " and so does preflight; API and terminal say which agents those are, and what to do."),
    _R("D.340", "Every trigger fires when it should and not again: the start once for each atlas, keywords for each input, intervals"
       " also after a restart, custom triggers where their code said so, in the order of priorities."),
    _R("D.341", "Advice and observation hold nobody up; who only looks on changes nothing, and an evaluation that changes nothing"
       " gives the same state."),
    _R("D.342", "Budgets of gates, size and time leave out the least important and trace it; what blocks or restricts is never left out."),
    _R("D.343", "deny, then questions, approval, rate limit, budget, allow, and else deny; over several atlases deny wins, and no gate"
       " allows again what another one denies."),
    _R("D.344", "An answer is for exactly one call, by its action and arguments; answers that nobody asked for change nothing."),
    _R("D.345", "Tries are capped: a gate of the session ends it, a gate of a call shuts that call, and other arguments or many other"
       " questions give no fresh tries; gates that are gone open nothing."),
    _R("D.346", "A capability opens when all its gates are passed, stays open until it is locked, and is no way around the gate of"
       " another one."),
    _R("D.347", "People pass the gates that they were shown with the call that they approve, and no others."),
    _R("D.348", "Rate limits and budgets count what runs; what is left and until when is told with the verdict."),
    _R("D.349", "Guidance is added, replaced within its own atlas, and expires; what the model reads is made of the state alone."),
    _R("D.350", "Every type of question with every rule and every `on_invalid`; no answer is asked for again, whatever follows from a"
       " wrong one."),
    _R("D.351", "`false`, \"not understood\", too long, and forbidden words in another case, Unicode form, alphabet or spelled out are"
       " not accepted; whatever is answered is judged."),
    _R("D.352", "Regular expressions of stewards take linear time; those that could not are refused."),
    _R("D.353", "Without its validator an answer is not accepted, and no validator saves one that is wrong anyway."),
    _R("D.354", "Of very many globs and keywords those that match are found without looking at the others, as people read them."),
    _R("D.355", "A machine of boundaries, answers, forgeries, calls and approvals in any order: no gated call is allowed without its"
       " gates, no deny is overridden, the state survives its row, and evaluation is deterministic."),
    _R("D.440", "Of the risk that a caller declares and the one that is published or confirmed of the tool the higher counts: for calls"
       " from elsewhere, guards, gates, resolutions, permissions, explanations and simulations."),
    _R("D.441", "Causes of a call are all who shaped it: submitter and resubmitter, authors of messages, signals, context, agent"
       " version, reasons and answers that it has read, and owners of service keys; where self-approval is off none of them approves it."),
    _R("D.442", "Causes join with calls and stay out of what joins them; where nobody is left the request fails at once and names whom it"
       " excluded and why; card and receipt say that self-approval is allowed; what has no id excludes nobody, and the card says so."),
    _R("D.443", "Whoever edits a request is a cause of it: their yes is void, also one given before, and it stays open for the others."),
    _R("D.446", "Where a call is asked for again under other terms, the authors of the policies, atlases and tool confirmations that changed"
       " since are causes of it, also whoever took a confirmation back. Confirmations are compared by the version that the request names, so"
       " a change that was under way when it was asked for counts."),
    _R("D.444", "An uncertain call that needed an approval is settled by those who could approve it, in the same number and with answers that"
       " agree, causes excluded; to give it up one of them is enough. Others are settled by admins, operators and approvers."),
    _R("D.445", "After an answer that it did not happen a call is sent again under its approval once, then only with a new grant; how often is"
       " capped and on the card."),
    _R("D.356", "Scenarios play a session under an atlas event by event and tell each difference from what is expected."),
    _R("D.357", "Scenario files are read strictly: every fault with its line, and any tree is read or refused."),
    _R("D.358", "`cortex atlas test` plays scenarios without a plane, with a readable report, JSON and exit codes."),
    # People answer more than yes or no
    _R("D.740", "A response to any pending call is its result: nothing is sent, no grant is given, row, receipt, trail and event say so; one"
       " person who may approve is enough, and their words make them a cause of what follows. Jobs, code agents and guards. Where two jobs wait"
       " for one request and one of them ended before, the answer is for the other alone."),
    _R("D.741", "`ctx.ask` asks people for words, a choice or a form; policies say whom; a denial is an error that code may catch."),
    _R("D.742", "A model whose agent may ask people is offered `plane.ask_person` and gets the answer as its result, or is told that"
       " nobody answered."),
    _R("D.743", "Questions and answers are checked on the server: what does not fit is refused with the reason and changes nothing; at the"
       " deadline the default is the answer."),
    _R("D.744", "Questions are answered on the card without scripts, over the link of a mail (GET shows, POST answers), with a token, through a"
       " webhook and in a terminal; hidden characters are shown."),
    _R("D.745", "Of answers, decisions, deadlines and cancellations at once one counts, and the job goes on with it once, whoever dies."),
    # Limits, and smaller holes
    _R("D.590", "A body is bounded by its route before it is validated, a large one is read only for a caller who may send it, and"
       " faults are reported ten at a time."),
    _R("D.591", "A key that stands twice in one object of JSON is refused, at every door."),
    _R("D.592", "Schemas of callers are bounded in size and patterns, nothing that a caller sends is compiled on the event loop, and what is"
       " kept compiled is bounded in bytes."),
    _R("D.593", "A request whose head or body does not arrive in time is ended with the reason, however it trickles; a head and trailers"
       " have a largest size; and a reader that takes nothing is disconnected."),
    _R("D.594", "A key and a person may make so many requests a second in all processes together; a request writes nothing for it."),
    _R("D.595", "Wrong tokens from one address are throttled, a right one from there never is; and which address it is says the connection, or"
       " a proxy that was named."),
    _R("D.596", "The form of a signed link counts from its own page only, and where TLS is on the session's cookie belongs to this very"
       " host."),
    _R("D.597", "A platform key is written to a file for its owner alone, and printed nowhere."),
    _R("D.598", "Trying a webhook out does not tell what internal names resolve to, nor whether they exist."),
    _R("D.599", "A receipt names the key that signed it, under its signature; receipts from before stay valid."),
    # Against whoever can write to the database
    _R("D.610", "Credentials are found by an HMAC and carry a MAC: a row that was inserted or changed by hand is answered like an unknown"
       " secret, logged, counted and put on the trail."),
    _R("D.611", "A channel of a member counts only with a true MAC: for a decision, for a message, and for what is sent there."),
    _R("D.612", "Policies that the plane did not put in force allow nothing: calls are refused, jobs are held, and applying repairs it."),
    _R("D.613", "An atlas that the plane did not publish or retire governs nothing, and no older version takes its place."),
    _R("D.614", "Rows from before the credential key are converted once, at the first start, and none after that."),
    _R("D.615", "A new master key seals the credential key anew, and logs nobody out."),
    _R("D.616", "Verifying the trail names rows with a false MAC, and rows that ended on the trail and are back."),
    _R("D.617", "Rows that cannot be read are named by verifying the trail, and keep nothing else from being verified."),
    # Shares of orgs
    _R("D.620", "A worker's slots are shared: an org has at most its share, the last are for orgs that run nothing there, and an org's jobs in"
       " the plane can be limited exactly."),
    _R("D.621", "Requests in flight and streams are bounded for each org and process, with a reserve for orgs that have none; others are"
       " served meanwhile."),
    _R("D.622", "Orgs that wait for a database connection take turns; decisions, scheduler, notifier and key lookups have connections of their"
       " own."),
    _R("D.623", "A job that is handed back again and again without progress waits longer each time and then fails with the reason; a worker"
       " that stops is no such hand-back."),
    _R("D.624", "Refused decisions of one person on one card are counted in one row after the tenth."),
    _R("D.625", "Rows of request budgets that have long been full again are deleted."),
    _R("D.626", "While one org floods every door, another one decides and starts jobs."),
    _R("D.627", "Long reads run few at a time for each org and process; the others get 429 and Retry-After before their body is read."),
    # The trail, and what contradicts it
    _R("D.600", "Format, action, job, time and body of each audit entry are hashed; entries of earlier releases still verify, and within a"
       " chain the format never goes back."),
    _R("D.601", "A body may be gone only under an erase entry of its chain that names it, and no action can be renamed: in the database, in an"
       " export, and in entries of earlier releases."),
    _R("D.602", "`audit verify` names every row that is not what the trail says of it: policies, atlases, decisions, receipts, votes, messages,"
       " results, checkpoints."),
    _R("D.603", "A chain whose session is gone is named."),
    _R("D.604", "Signed roots are copied out of the database, to a file and to an address; what could not be copied is copied later."),
    _R("D.605", "Whoever holds copies of roots sees that roots were taken away, replaced or started anew, in the database and in an export."),
    # Spec 5, as far as gates are evaluated
    _R("S5.1", "session_start and interactive checkpoints fire when the session begins."),
    _R("S5.2", "Patterns of actions: exact, prefix, suffix and middle wildcards."),
    _R("S5.3", "action_post fires after an action, error_occurred where an error is detected."),
    _R("S5.4", "Keyword triggers match any, all, a phrase or a regex, with or without regard to case."),
    _R("S5.5", "risk_threshold fires where a call's tier reaches its own."),
    _R("S5.6", "time_interval and count_interval fire every so many seconds and actions."),
    _R("S5.7", "Custom triggers fire by their id."),
    _R("S5.8", "Blocking stops until it is answered, advisory tells, observational only records to TRACE."),
    _R("S5.9", "checkpoint_triggered, _response, _passed and _blocked have spec 5's payloads; force_sync_trace marks them."),
    _R("S5.10", "Optional budgets limit checkpoints per input, injected size and time."),
    _R("S5.11", "Checkpoints allow and deny actions."),
    _R("S5.12", "A blocking checkpoint presents its questions, validates the responses, and lets the action through."),
    _R("S5.13", "capability_access gates the use of a capability."),
    _R("S5.14", "Checkpoints unlock and lock capabilities and inject contexts."),
    _R("S5.15", "Guidance is appended or replaces, has a priority, and is removed after a checkpoint or a time."),
    _R("S5.16", "Guidance of the format system_instruction is a system-level instruction; text, markdown and JSON are knowledge."),
    _R("S5.17", "Questions are text, boolean, acknowledgment, choice, number or json."),
    _R("S5.18", "Answers are validated by pattern, lengths, and words that they must and must not contain."),
    _R("S5.19", "An invalid answer is retried by default, blocks, continues with a warning, or is only recorded."),
    _R("S5.20", "The runtime enforces checkpoints: an LLM cannot bypass them."),
    _R("S5.21", "The complete atlas example loads: steward, capabilities, checkpoints, contexts, policies and actions."),
    _R("S5.22", "Every trigger is written as spec 5 writes it, and has the priority of its table."),
    _R("S5.23", "Only stewards define checkpoints; what is published is never changed."),
    _R("S5.24", "The steward's access keys and rate limit are enforced."),
    _R("S5.25", "The steward's notifications go to their webhook."),
    _R("S5.26", "The resolution flow: atlases, checkpoints, questions, effects, policies, and an answer with the allowed actions."),
    _R("S5.27", "All checkpoint events are recorded to TRACE: triggered, response, passed, blocked."),
    _R("S5.28", "checkpoint_config, the form for a whole atlas, makes checkpoints of its own."),
    _R("S5.29", "Custom triggers and validators are code that cannot hold up or open anything."),
    _R("S5.30", "Checkpoints are cheap: compiled once, looked up by what matches."),
    _R("S5.31", "Checkpoint flows can be tested: trigger, questions, validation, effects."),
    _R("S5.260", "An answer can be required to equal an argument of the call that it stands before; another answer, or a call with"
       " another argument, never passes."),
    _R("S5.261", "The bench of stewards and the worker give the same verdicts on the same atlases, policies and calls."),
    _R("S5.262", "A scenario says which policy file and which tools it runs under; an unknown risk is what production takes."),
    _R("S5.263", "Scenarios run under the policies, tools and agents of the org: over the API, the client and the command line."),
    _R("S5.266", "The guide about refunds works from an empty folder on, and the scenarios of `cortex atlas test --live` say what a worker"
       " does for 40, 200 and 600 EUR and for a wrong order."),
    _R("S5.265", "An agent is created with its atlases from the command line."),
    _R("S5.264", "Applying a policy file that would remove policies names them and asks; merging keeps them, each in its place."),
    _R("S5.200", "An atlas that allows a call speaks for it where the tool declares low or medium risk: nobody is asked by"
       " default. What is riskier, or declares no risk, keeps the default; a policy that matches holds where it is stricter."),
    _R("S5.201", "A keyword trigger searches the whole text, off the event loop where it is long. A text that cannot be searched"
       " fires the gates that block, and is traced."),
    _R("S5.202", "The gates before an action are asked before the lock of its capability refuses it, where one of them unlocks it."),
    _R("S5.203", "Validating and publishing an atlas name, with the line, every action that no sequence of answers lets run."),
    _R("S5.205", "The complete atlas example behaves in a worker as it is written, without a policy of the org."),
    _R("S5.204", "An atlas or a scenario that names a tool of the plane itself is refused, with the line."),
    _R("S5.230", "A card says why its policy asks, and what the agent answered to gates, on page, mail, API and terminal."),
    _R("S5.231", "A model is shown the schema, limits and patterns of a question, and the names that it may request."),
    _R("S5.232", "An accepted answer says how many gates still stand before the call, and which."),
    _R("S5.233", "The receipt of an answer says which capabilities and actions it opened."),
    _R("S5.234", "Answers in TRACE are whole or marked as cut."),
    _R("S5.235", "Several contexts are requested at once."),
    _R("S5.236", "A custom validator may be a signed callback to a steward's webhook connection, with a timeout, and fails closed."),
    _R("S5.237", "max_checkpoint_time_ms counts the evaluation itself."),
    _R("S5.238", "A manifest is queried for the gates, capabilities and policies of an action, and for the gates of a capability."),
    _R("S5.239", "A builder writes atlases from Python: the document that the reader of files accepts, checked by that alone."),
    _R("S5.240", "Keys of policy files in an atlas are refused with the lines to write in a policy file."),
    _R("S5.241", "Bidi and zero-width characters in names and questions are refused or shown."),
    _R("S5.242", "session_end fires however a session ends."),
    # Nobody decides in another's name
    _R("D.461", "Ending a credential ends what came from it: sessions and links with their key, keys with the key that made them;"
       " of a deactivated member nothing comes back."),
    _R("D.462", "People see and end their browser sessions and keys on a page, over the API and from the command line; admins end"
       " the sessions of others."),
    _R("D.463", "A credential that can decide is made only by the person it stands for: an admin hands over an enrolment code, which"
       " works once, within 24 hours, and ends every earlier way in."),
    _R("D.464", "A service changes connections, policies, atlases, confirmations, agents, teams, org and members only where a human"
       " admin granted it that by name; the trail says so."),
    _R("D.465", "Until somebody has proven a channel of their own, they and whoever enrolled or promoted them count as one human in"
       " every quorum and for self-approval; the card says why a vote adds nothing."),
    _R("D.466", "A vote through a webhook and that of whoever set its secret, or said whose a name behind it is, count as one human."),
    _R("D.630", "Random people with several identities each, who enrol, submit, resubmit, write, signal, edit, delegate, go absent, give"
       " standing approvals, settle, and change agents, policies and tools, never complete alone what policy gives to two humans."),
    _R("D.631", "`cortex db rotate-key` seals every secret of every org with a new master key and renews the MACs of checkpoints; it is on the"
       " audit trail of each org."),
    _R("D.632", "A rotation of the master key that is killed at any point leaves a plane that starts, and the next process finishes it; two at"
       " once are one."),
    _R("D.633", "The new master key is made beside the old one in a file that only its owner can read, or is read from the standard input where"
       " the old one comes from the environment; a wrong old key changes nothing."),
    _R("D.634", "A rotation of the master key is refused while a secret does not open or a worker runs; a process with the old key writes"
       " nothing beside it."),
    _R("D.640", "Tables that grew get statistics within seconds, also where autovacuum has not looked yet; the primary key of a table is its last index."),
    _R("D.700", "The layout holds: floors and the order of nouns in the import graph, no cycle, few places imported, small folders, shallow"
       " inheritance, no code twice; exceptions are listed and only become fewer."),
    _R("D.720", "The outcome of a call that policy alone allowed and that may be repeated with its key goes with the next intent in one commit"
       " where the model answers in time; else it is written by itself. A held or cancelled job stops between the two."),
    _R("D.800", "An atlas belongs to whoever published it first, or to the member or team that it was handed over to; only they and admins"
       " retire its versions and hand it over."),
    _R("D.801", "A version of somebody else's atlas is a request for approval with the diff: it holds in the transaction in which its owner or"
       " an admin approves it, never by its proposer's own yes, and a no or the end of its time leaves the old one."),
    _R("D.802", "A proposal that another version overtook is cancelled and never put in force, whoever decides and publishes at the same instant."),
    _R("D.803", "Where the org's setting policy_changes is approval, a policy file waits with its simulation for another steward or admin, and"
       " holds exactly as it was shown."),
    _R("D.804", "The platform's policies are applied as a file with a platform key alone; the trail of every org says so."),
    _R("D.805", "The card of a proposed version shows what it would have changed about the calls of the last week, and what that leaves out."),
    _R("D.806", "The `reason` of a policy, of the org or the platform, is on its requests (API, page, mail, terminal) and in its denials."),
    _R("D.820", "A conversation goes on in its session on whichever linked channel its person writes; what the agent says goes to where they"
       " wrote last."),
    _R("D.821", "What a vendor posts is verified on its raw bytes, stored once and answered before it is handled, in order within a chat; what"
       " is forged gets 401, what is malformed 400, both are counted, and no log has their content."),
    _R("D.822", "A press is the decision of whoever pressed, judged as at any other door: a stranger's, an unlinked sender's, one on an older"
       " version or after the end changes nothing and is answered; whoever set a connection up and a press over it are one human."),
    _R("D.823", "On a channel Approve stands only where the message shows every argument whole, and for the templates of high risk nowhere."),
    _R("D.824", "However a request ends, every copy of its card on every channel says so, and no button on them stays live."),
    _R("D.825", "One process listens to a connection; one that was stopped past its lease is not believed when it goes on."),
    _R("D.826", "A pause that a vendor asks for is kept by all notifiers, for this connection or this chat alone, and costs no message its place;"
       " an hour without the vendor loses nothing and floods nobody afterwards."),
    _R("D.827", "A new connection says who it is at its vendor, or what is wrong; a kind that is not served is refused; one that its vendor"
       " took away is disabled, operators are told elsewhere, and messages wait until it is enabled."),
    _R("D.828", "A code that is typed on a channel makes its sender somebody's once they have confirmed the name shown to them; what a guest"
       " wrote stays theirs."),
    _R("D.840", "On Discord people write plain messages in direct chats, and in servers where they mention the bot; a break, or another process"
       " that takes over, loses and repeats none of them."),
    _R("D.841", "Discord works without a public address: presses, forms and commands come over its Gateway."),
    _R("D.829", "A shared place that a policy names gets the card and its end."),
    _R("D.830", "A deployment that GitHub or GitLab holds waits for policies and people, and gets one verdict; a job of GitLab is started"
       " once, wherever its sender dies."),
    _R("D.842", "A member links an account of GitHub or GitLab by logging in there and confirming its name: its comments decide as theirs by"
       " their own proof, and an admin who had vouched for it is another human; what they wrote as a guest is theirs."),
    _R("D.843", "A login at a vendor counts once, for ten minutes, in the browser session that began it: another session, a code of somebody"
       " else, an account that is taken, a program's account and a refusal of the vendor link nothing and say what to do."),
    _R("D.893", "Where the vendor allows edits, an answer grows in its chat at the vendor's pace, and one message ends as the whole, or as what"
       " became of it, whoever dies meanwhile."),
    _R("D.894", "A process that dies while it sends a long answer repeats one message of it at most, and none where the vendor knows it again."),
    _R("D.895", "What people wrote to the app in direct messages on Slack while the plane was away is read from the history, once, in both modes."),
    _R("D.1020", "A service that may say so opens external sessions for a member, by id or by a verified name on a connection: each person has a"
       " session and keys of calls of their own there, in HTTP, client, guard and adapters."),
    _R("D.1021", "Only a service key to which an admin granted `session.on_behalf` says for whom it works; a program cannot grant it, and a"
       " refusal tells nothing about people."),
    _R("D.1022", "A service that works for a person decides nothing, sees nothing else of theirs, and both the person and whoever made its"
       " key are causes."),
    _R("D.1023", "For guests, strangers and deactivated members nothing is opened, and what was opened for a member who was deactivated since"
       " is allowed and begun no more."),
    _R("D.1024", "People are asked whether a call happened also where its external session is over: those who could settle it while it lived, by"
       " the same quorum. Afterwards its keys get the result, or a new call where it did not happen."),
    _R("D.1025", "`cortex resume` runs a command of its own file for each session about which people decided: at least once for each decision until"
       " it ends well, one at a time for each session, and nothing is lost where it is killed between the decision and the start."),
    _R("D.1026", "The file of `cortex resume` is read strictly, no shell reads what others chose, and an id is never an option."),
    _R("D.1105", "Tools and handoffs that are added to a guarded agent of the OpenAI Agents SDK, or to its copy, ask the plane or are refused."),
    _R("D.1106", "`cortex resume` runs once for each session where members or services share an outside id, and says for whom."),
    _R("D.1107", "The person for whom a service works does not write the state of its runs."),
    _R("D.1108", "An id that a provider gives to calls of several turns is a call of its own in each of them, and the same one in each resume."),
    _R("D.1109", "A tool of Google ADK has its `current_call()`, each of those that run at once its own."),
    _R("D.1040", "Streams of gRPC that catch up read in the turns of their org, few of an org at a time, and a reader that leaves keeps no place."),
    _R("D.1041", "On SIGTERM the doors of HTTP and gRPC end together: no call begins, those under way finish, and streams end with a status that"
       " says so."),
    _R("D.1042", "gRPC is served on the port that the settings say, or the process says that it cannot; only `cortex up` takes another one, and"
       " prints it."),
    _R("D.1043", "Each field of `RequestApproval` that asks for looser terms than the policy's changes none of them."),
    _R("D.790", "Operation ids are unique and stay: a test holds the list."),
    _R("D.791", "Every property and parameter of the OpenAPI document is described: by the string below it, its type or its name."),
    _R("D.792", "/docs shows the OpenAPI document to everybody, without scripts, and loads nothing from elsewhere."),
]  # fmt: skip


@functools.cache
def proofs() -> dict[str, list[str]]:
    """The tests of `make test` that carry a mark for each id, as ``path::function``. What only `make soak` runs proves nothing."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if "pytest.mark.proves" not in text:
            continue
        module = ast.parse(text)
        if "pytestmark" in text and any(_soaks_all(line) for line in module.body):
            continue
        in_classes = [node for line in module.body if isinstance(line, ast.ClassDef) for node in line.body]
        for node in [*module.body, *in_classes]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for name in [] if _only_soak(node) else _marks(node):
                    found.setdefault(name, []).append(f"{path.relative_to(TESTS.parent)}::{node.name}")
    return found


_SOAK = "pytest.mark.soak"


def _soaks_all(line: ast.stmt) -> bool:
    return "pytestmark" in ast.unparse(line) and _SOAK in ast.unparse(line)


def _only_soak(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Marked as a whole, or with each of its parameters."""
    for decorator in node.decorator_list:
        if ast.unparse(decorator) == _SOAK:
            return True
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
            values = decorator.args[1]
            if isinstance(values, ast.List) and all(_SOAK in ast.unparse(value) for value in values.elts):
                return True
    return False


def _marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The ids in the decorators ``@pytest.mark.proves("…", …)``."""
    return [
        argument.value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.proves"
        for argument in decorator.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
