-- The durable core: workers, leases, checkpoints, steps, tool calls with their effects.
--
-- Lock order, for every transaction that takes more than one:
--   session → agent's claim lock → job → tool_call → session_head → org_head.
--
-- A job is leased by at most one worker. Every write of an attempt names worker, epoch and the number of the write
-- before it: whoever lost the job changes nothing, and a write that is sent twice is applied once.

-- Workers ---------------------------------------------------------------------------------------------------
-- Workers, the code they loaded and the key that the plane signs with belong to the platform, not to a tenant: these
-- three tables hold nothing of any org, so they have no row-level security.

create table worker (
  id           uuid primary key,
  name         text not null,
  host         text not null,
  pid          integer not null,
  apps         text[] not null,
  concurrency  integer not null,
  started_at   timestamptz not null default plane_now(),
  expires_at   timestamptz not null,
  stopped_at   timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- What a tool was when a worker published it. A call names the digest of the version that it was made for.
create table tool_version (
  app              text not null,
  name             text not null,
  digest           text not null,
  description      text not null,
  parameters       jsonb not null,
  read_only        boolean not null,
  risk             text not null,
  timeout_seconds  double precision not null,
  on_uncertain     text,
  published_at     timestamptz not null default plane_now(),
  primary key (app, name, digest),
  constraint chk_tool_version_digest check (digest ~ '^[a-f0-9]{64}$')
);

-- The fingerprint of the master key: a process with another key would find every checkpoint forged.
create table plane_key (
  singleton    boolean primary key default true,
  fingerprint  bytea not null,
  constraint chk_plane_key_singleton check (singleton)
);

-- Sessions and jobs -----------------------------------------------------------------------------------------

alter table session
  add column held_at timestamptz,
  add column hold_reason text;

alter table job
  add column app text not null default 'plane',
  add column checkpoint jsonb,
  add column checkpoint_mac bytea,
  add column worker_id uuid,
  add column epoch bigint not null default 0,
  add column write_seq bigint not null default 0,
  add column leased_at timestamptz,
  -- When it may be claimed; null while it is leased, held, waiting for somebody or finished.
  add column runnable_at timestamptz default plane_now(),
  -- 0 before 1: what was begun goes before what is new.
  add column queue smallint not null generated always as (case when epoch = 0 then 1 else 0 end) stored,
  add column wake_at timestamptz,
  add column holds text[] not null default '{}',
  add column held_at timestamptz,
  add column cancel_requested_at timestamptz,
  add column cancel_reason text,
  add column deaths integer not null default 0,
  add column running_seconds double precision not null default 0,
  add column step_index integer,
  add column result jsonb;
-- Forced row-level security holds for the owner too, who would change no row at all without this.
alter table job no force row level security;
update job
set runnable_at = case status
    when 'PENDING' then created_at when 'RUNNING' then updated_at when 'RETRY' then next_retry_at
    when 'SLEEPING' then updated_at end,
  wake_at = case when status = 'SLEEPING' then updated_at end,
  holds = case when status = 'PAUSED' then '{operator}'::text[] else '{}' end,
  held_at = case when status = 'PAUSED' then updated_at end;
alter table job force row level security;
alter table job
  alter column checkpoint set storage external,
  add constraint chk_job_lease check (
    (worker_id is null) = (leased_at is null) and (worker_id is null or (status = 'RUNNING' and runnable_at is null))),
  add constraint chk_job_runnable check (
    runnable_at is null or (status in ('PENDING', 'RUNNING', 'RETRY', 'SLEEPING') and holds = '{}')),
  add constraint chk_job_paused_is_held check (status <> 'PAUSED' or holds <> '{}'),
  add constraint chk_job_held_since check ((holds = '{}') = (held_at is null)),
  add constraint chk_job_checkpoint_is_signed check ((checkpoint is null) = (checkpoint_mac is null));

-- One queue per app, org and agent: who is at its limit costs one look, however much waits behind it.
drop index idx_job_pending;
drop index idx_job_retry;
create index idx_job_queue on job (app, org_id, agent_id, queue, runnable_at) where runnable_at is not null;
create index idx_job_leased on job (org_id, agent_id) where worker_id is not null;
create index idx_job_worker on job (worker_id) where worker_id is not null;

-- Steps -----------------------------------------------------------------------------------------------------
-- A step is one response of the model with all its calls resolved. Rows are written once, so that a long job costs
-- what its conversation weighs, and not its square.

create table step (
  org_id             uuid not null,
  job_id             uuid not null,
  step_index         integer not null,
  message_seq        bigint not null,
  response           jsonb not null,
  prompt_tokens      integer not null,
  completion_tokens  integer not null,
  started_at         timestamptz not null,
  created_at         timestamptz not null default plane_now(),
  primary key (org_id, job_id, step_index)
);

-- What `authorize` answered about one call.
create table call_authorization (
  org_id      uuid not null,
  id          uuid not null,
  job_id      uuid not null,
  tool_name   text not null,
  input_hash  bytea not null,
  verdict     text not null,
  rule        text not null,
  created_at  timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint chk_call_authorization_verdict check (verdict in ('allow', 'deny', 'requires_approval'))
);

-- A call of a tool. Where it has side effects, the row is there before the call is sent (the intent), names what
-- authorised it, and says until when it may be sent; the outcome is written after it. A read-only call is written
-- with its result.
create table tool_call (
  org_id            uuid not null,
  id                uuid not null,
  job_id            uuid not null,
  step_index        integer not null,
  position          integer not null,
  tool_name         text not null,
  tool_digest       text,
  arguments         jsonb not null,
  input_hash        bytea not null,
  read_only         boolean not null,
  on_uncertain      text,
  authorization_id  uuid,
  status            text not null,
  attempt           integer not null default 1,
  dispatch_before   timestamptz,
  settle_after      timestamptz,
  result            jsonb,
  result_id         uuid,
  error             text,
  settled_by        text,
  created_at        timestamptz not null default plane_now(),
  finished_at       timestamptz,
  primary key (org_id, id),
  constraint uq_tool_call_position unique (org_id, job_id, step_index, position),
  constraint fk_tool_call_authorization
    foreign key (org_id, authorization_id) references call_authorization (org_id, id),
  constraint chk_tool_call_status check (
    status in ('intended', 'uncertain', 'cleared', 'completed', 'failed', 'rejected')),
  constraint chk_tool_call_on_uncertain check (on_uncertain in ('retry_with_key', 'probe', 'ask_human', 'fail')),
  -- A dispatch that nobody authorised, or that has no end, cannot be written.
  constraint chk_tool_call_intent check (
    read_only or status = 'rejected'
    or (authorization_id is not null and dispatch_before is not null and settle_after is not null
        and on_uncertain is not null)),
  constraint chk_tool_call_end check (
    (status in ('completed', 'failed', 'rejected')) = (finished_at is not null)),
  constraint chk_tool_call_hash check (length(input_hash) = 32)
) with (fillfactor = 80);

-- Results that are too large for a row that is read with every step.
create table stored_result (
  org_id      uuid not null,
  id          uuid not null,
  job_id      uuid not null,
  content     bytea not null,
  created_at  timestamptz not null default plane_now(),
  primary key (org_id, id)
);
alter table stored_result alter column content set storage external;

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['step', 'call_authorization', 'tool_call', 'stored_result']
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

grant select, insert, update (expires_at, stopped_at), delete on worker to cortex_app;
grant select, insert on tool_version, plane_key, step, call_authorization, stored_result to cortex_app;
grant select, insert, update (
  status, attempt, dispatch_before, settle_after, result, result_id, error, settled_by, finished_at
) on tool_call to cortex_app;
grant update (
  checkpoint, checkpoint_mac, worker_id, epoch, write_seq, leased_at, runnable_at, wake_at, holds, held_at,
  cancel_requested_at, cancel_reason, deaths, running_seconds, step_index, result
) on job to cortex_app;

-- cortex_claimer finds work across orgs. It sees what a queue needs and changes nothing: `update` on one column is
-- what PostgreSQL asks for before it lets anybody lock a row.
grant usage on schema public to cortex_claimer;
grant select (org_id, id, app, agent_id, queue, runnable_at, worker_id, epoch, deaths, cancel_requested_at, holds),
  update (runnable_at) on job to cortex_claimer;
grant select (org_id, id, config_version) on agent to cortex_claimer;
grant select (org_id, agent_id, version, resource_limits) on agent_version to cortex_claimer;
grant select on worker to cortex_claimer;
create policy claimer on job to cortex_claimer using (true) with check (false);
-- Permissive policies add up, and the tenant's is everybody's: without this one the claimer could write where an org is
-- set.
create policy claimer_writes_nothing on job as restrictive for update to cortex_claimer
  using (true) with check (false);
create policy claimer on agent for select to cortex_claimer using (true);
create policy claimer on agent_version for select to cortex_claimer using (true);

-- It returns something now, and is made anew with the other functions.
drop function if exists session_append(uuid, uuid, integer, text[], uuid[], jsonb[], text[], bytea[]);
