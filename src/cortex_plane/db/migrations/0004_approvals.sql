-- Approvals: requests, the calls that each of them decides, votes, grants, and the read model of their lives.
--
-- Lock order, for every transaction that takes more than one:
--   session → agent's claim lock → jobs (by id) → approval → tool_call → session_head → org_head.

-- Jobs ------------------------------------------------------------------------------------------------------
-- Who must not approve alone what they asked for themselves. Null where a program asked.
alter table job add column caused_by uuid;

-- Calls -----------------------------------------------------------------------------------------------------
-- Two more states before the intent: a person is asked, a person said yes. An edited call keeps what will be sent.

alter table tool_call add column edited boolean not null default false;
alter table tool_call
  drop constraint chk_tool_call_status,
  drop constraint chk_tool_call_intent,
  add constraint chk_tool_call_status check (
    status in ('awaiting', 'approved', 'intended', 'uncertain', 'cleared', 'completed', 'failed', 'rejected')),
  add constraint chk_tool_call_intent check (
    read_only or status = 'rejected'
    or (status in ('awaiting', 'approved') and authorization_id is not null)
    or (authorization_id is not null and dispatch_before is not null and settle_after is not null
        and on_uncertain is not null));

-- Requests --------------------------------------------------------------------------------------------------

create table approval_request (
  org_id               uuid not null,
  id                   uuid not null,
  kind                 text not null,
  status               text not null default 'pending',
  version              integer not null default 1,
  session_id           uuid not null,
  job_id               uuid not null,
  agent_id             uuid not null,
  step_index           integer not null,
  action_type          text not null,
  tool_name            text not null,
  tool_digest          text,
  target               text not null,
  arguments            jsonb not null,
  input_hash           bytea not null,
  original_arguments   jsonb,
  original_hash        bytea,
  invocations          integer not null default 1,
  risk                 text not null,
  action_summary       text not null,
  agent_says           text,
  asked_for            text,
  question             text,
  rule                 text not null,
  policy_version       text not null,
  template             text not null,
  required_clearance   integer not null,
  timeout_seconds      integer not null,
  approvers            jsonb not null,
  on_deny              text not null,
  self_approval        boolean not null,
  owner_id             uuid,
  caused_by            uuid,
  -- Everybody whose words the job had read when it asked; none of them approves it where others must.
  causes               uuid[] not null default '{}',
  -- Identical calls join only where the same terms hold for them.
  terms_hash           bytea not null,
  escalation_level     integer not null default 0,
  channels_dispatched  text[] not null default '{dashboard}',
  requested_at         timestamptz not null,
  deadline             timestamptz,
  remind_at            timestamptz,
  reminded_at          timestamptz,
  -- When a scheduler must look at it; null once it is resolved.
  next_action_at       timestamptz,
  resolved_at          timestamptz,
  resolved_by          uuid,
  resolved_by_name     text,
  resolution_reason    text,
  resolved_via         text,
  primary key (org_id, id),
  constraint fk_approval_request_session foreign key (org_id, session_id) references session (org_id, id),
  constraint fk_approval_request_job foreign key (org_id, job_id) references job (org_id, id),
  constraint fk_approval_request_resolved_by foreign key (org_id, resolved_by) references user_account (org_id, id),
  constraint chk_approval_request_kind check (kind in ('call', 'uncertain_effect')),
  constraint chk_approval_request_status check (
    status in ('pending', 'approved', 'denied', 'expired', 'cancelled')),
  constraint chk_approval_request_template check (
    template in ('dev_only', 'dev_review', 'full_pipeline', 'critical_path')),
  constraint chk_approval_request_on_deny check (on_deny in ('fail', 'continue')),
  constraint chk_approval_request_summary check (length(trim(action_summary)) > 0),
  constraint chk_approval_request_end check ((status = 'pending') = (resolved_at is null)),
  -- Whoever decided keeps their name here, whatever becomes of their account.
  constraint chk_approval_request_decider check (
    status not in ('approved', 'denied') or resolved_by_name is not null),
  -- A call that nobody decides ends at its deadline, which a scheduler looks for; no other row costs it anything.
  constraint chk_approval_request_deadline check (
    kind <> 'call' or (deadline is not null and (status = 'pending') = (next_action_at is not null))),
  constraint chk_approval_request_hashes check (length(input_hash) = 32 and length(terms_hash) = 32)
) with (fillfactor = 85);
create unique index uq_approval_request_pending
  on approval_request (org_id, session_id, tool_name, input_hash, terms_hash)
  where status = 'pending' and kind = 'call';
create index idx_approval_request_due on approval_request (next_action_at) where next_action_at is not null;
create index idx_approval_request_job on approval_request (org_id, job_id);
create index idx_approval_request_list on approval_request (org_id, requested_at desc, id desc);
create index idx_approval_request_status on approval_request (org_id, status, requested_at desc, id desc);
create index idx_approval_request_session on approval_request (org_id, session_id, requested_at desc, id desc);
create index idx_approval_request_tool on approval_request (org_id, tool_name, resolved_at desc)
  where status in ('approved', 'denied');
create index idx_approval_request_resolved_by on approval_request (org_id, resolved_by) where resolved_by is not null;

-- The calls that a request decides. Identical calls share one request.
create table approval_invocation (
  org_id       uuid not null,
  approval_id  uuid not null,
  call_id      uuid not null,
  job_id       uuid not null,
  created_at   timestamptz not null default plane_now(),
  primary key (org_id, approval_id, call_id),
  constraint fk_approval_invocation_approval
    foreign key (org_id, approval_id) references approval_request (org_id, id)
);
create index idx_approval_invocation_job on approval_invocation (org_id, job_id);
create index idx_approval_invocation_call on approval_invocation (org_id, call_id, created_at desc);

-- One vote per person and version; an edit makes a new version, for which earlier votes do not count.
create table approval_vote (
  org_id           uuid not null,
  approval_id      uuid not null,
  version          integer not null,
  user_account_id  uuid not null,
  member           text not null,
  decision         text not null,
  reason           text,
  channel          text not null,
  created_at       timestamptz not null,
  primary key (org_id, approval_id, version, user_account_id),
  constraint fk_approval_vote_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_approval_vote_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_approval_vote_decision check (decision in ('approved', 'denied'))
);
create index idx_approval_vote_account on approval_vote (org_id, user_account_id);

-- The right to send one exact call once. It is consumed by the commit that writes the call's intent.
create table approval_grant (
  org_id       uuid not null,
  call_id      uuid not null,
  approval_id  uuid not null,
  tool_digest  text not null,
  input_hash   bytea not null,
  created_at   timestamptz not null,
  expires_at   timestamptz not null,
  consumed_at  timestamptz,
  primary key (org_id, call_id, approval_id),
  constraint fk_approval_grant_approval foreign key (org_id, approval_id) references approval_request (org_id, id)
);
create index idx_approval_grant_approval on approval_grant (org_id, approval_id);

-- The read model of an approval's life, written by the transactions that change it.
create table approval_event (
  org_id           uuid not null,
  id               bigint generated always as identity,
  approval_id      uuid not null,
  event_type       text not null,
  channel          text,
  actor_member_id  uuid,
  actor            text,
  idempotency_key  text,
  payload          jsonb not null default '{}',
  created_at       timestamptz not null,
  primary key (org_id, approval_id, id),
  constraint fk_approval_event_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint chk_approval_event_type check (event_type in (
    'requested', 'joined', 'dispatched', 'delegated', 'edited', 'approved', 'denied', 'expired', 'cancelled',
    'reminded', 'escalated', 'answered', 'refused', 'channel_duplicate', 'channel_conflict'))
);
create unique index uq_approval_event_key on approval_event (org_id, approval_id, idempotency_key)
  where idempotency_key is not null;

-- Idle sessions ---------------------------------------------------------------------------------------------
-- When a scheduler must look whether a session has gone idle; activity itself does not write here.

alter table session add column idle_check_at timestamptz;
-- Those that are open already are looked at within a day. Forced row-level security holds for the owner too.
alter table session no force row level security;
update session set idle_check_at = plane_now() + interval '1 day' where kind = 'conversation' and status = 'ACTIVE';
alter table session force row level security;
create index idx_session_idle on session (idle_check_at) where idle_check_at is not null;

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array[
    'approval_request', 'approval_invocation', 'approval_vote', 'approval_grant', 'approval_event']
  loop
    execute format('alter table %I enable row level security', tenant_table);
    execute format('alter table %I force row level security', tenant_table);
    execute format($policy$
      create policy tenant on %I
        using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
        with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
    $policy$, tenant_table);
  end loop;
end
$$;

grant select, insert, update (
  status, version, arguments, input_hash, original_arguments, original_hash, invocations, reminded_at, next_action_at,
  resolved_at, resolved_by, resolved_by_name, resolution_reason, resolved_via
) on approval_request to cortex_app;
grant select, insert on approval_invocation, approval_vote, approval_event to cortex_app;
grant select, insert, update (consumed_at) on approval_grant to cortex_app;
grant update (edited, arguments, input_hash, authorization_id, tool_digest, on_uncertain) on tool_call to cortex_app;

-- cortex_scheduler finds what is due across orgs. It sees when, and nothing else.
grant usage on schema public to cortex_scheduler;
grant select (org_id, id, next_action_at) on approval_request to cortex_scheduler;
grant select (org_id, id, idle_check_at) on session to cortex_scheduler;
create policy scheduler on approval_request for select to cortex_scheduler using (true);
create policy scheduler on session for select to cortex_scheduler using (true);

-- They take or return more now, and are made anew with the other functions.
drop function if exists advance_job(
  uuid, uuid, uuid, bigint, bigint, text, bytea, integer, bigint, text, integer, integer, double precision,
  integer, text, text[], text, text[], uuid[], double precision, uuid[], bytea[], text, text, text, double precision,
  text, text, text[], jsonb[], text[], bytea[]);
drop function if exists claim_jobs(uuid, text[], integer, uuid);
