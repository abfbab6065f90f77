-- Agents that run elsewhere and ask before they act. Their job is never leased: nobody here runs it, so nobody claims it,
-- adopts it or gives it up. Their calls stand in the same ledger as those of workers.

alter table job drop constraint chk_job_kind;
alter table job add constraint chk_job_kind check (kind in ('conversation', 'task', 'external'));
alter table job add constraint chk_job_external check (kind <> 'external' or (worker_id is null and runnable_at is null));

-- Allowed and not begun: only who runs elsewhere leaves time between the two.
alter table tool_call drop constraint chk_tool_call_status;
alter table tool_call add constraint chk_tool_call_status check (status in (
  'awaiting', 'allowed', 'approved', 'intended', 'uncertain', 'cleared', 'completed', 'failed', 'rejected'));
alter table tool_call drop constraint chk_tool_call_intent;
alter table tool_call add constraint chk_tool_call_intent check (
  read_only or status = 'rejected'
  or (status in ('awaiting', 'allowed', 'approved') and authorization_id is not null)
  or (authorization_id is not null and dispatch_before is not null and settle_after is not null
    and on_uncertain is not null));

-- What was declared about a tool that runs elsewhere. Its digest names it, as with the tools of workers; only who gave a schema
-- has a row, and only then can an approver edit its arguments.
create table external_tool (
  org_id      uuid not null,
  name        text not null,
  digest      text not null,
  parameters  jsonb not null,
  created_at  timestamptz not null default plane_now(),
  primary key (org_id, name, digest),
  constraint fk_external_tool_org foreign key (org_id) references org (id),
  constraint chk_external_tool_digest check (digest ~ '^[a-f0-9]{64}$')
);

-- What the ledger does not say of a call that runs elsewhere.
create table external_call (
  org_id           uuid not null,
  call_id          uuid not null,
  session_id       uuid not null,
  job_id           uuid not null,
  agent_id         uuid not null,
  -- Whose session it is: their account, or the id of the service's key. Keys are theirs alone.
  opener           uuid not null,
  key              text,
  -- Who asked and who began last: an account or a service's key. Others do not say what became of it.
  asker            uuid not null,
  begun_by         uuid,
  -- The person who asked, where it was one: they do not approve it where the policy says so.
  caused_by        uuid,
  asked_hash       bytea not null,
  risk             text not null,
  claims_read_only boolean not null,
  timeout_seconds  double precision not null,
  policies         text not null,
  sender           text,
  settle_at        timestamptz,
  created_at       timestamptz not null default plane_now(),
  primary key (org_id, call_id),
  -- One key of one opener is one call of its agent, whichever session asks.
  constraint uq_external_call_key unique (org_id, agent_id, opener, key),
  constraint fk_external_call_call foreign key (org_id, call_id) references tool_call (org_id, id),
  constraint fk_external_call_session foreign key (org_id, session_id) references session (org_id, id),
  constraint fk_external_call_job foreign key (org_id, job_id) references job (org_id, id),
  constraint fk_external_call_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint chk_external_call_key check (length(key) between 1 and 255),
  constraint chk_external_call_hash check (length(asked_hash) = 32)
) with (fillfactor = 80);
create index idx_external_call_session on external_call (org_id, session_id, created_at desc, call_id desc);
create index idx_external_call_job on external_call (org_id, job_id);
create index idx_external_call_list on external_call (org_id, created_at desc, call_id desc);
-- When a scheduler looks at an intent without an outcome.
create index idx_external_call_due on external_call (settle_at) where settle_at is not null;

-- Whether somebody said no to the very same before.
create index idx_tool_call_turned_down on tool_call (org_id, job_id, tool_name, input_hash)
  where status = 'rejected' and settled_by in ('denied', 'expired');

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['external_tool', 'external_call']
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

grant select, insert on external_tool to cortex_app;
grant select, insert, update (policies, sender, begun_by, settle_at) on external_call to cortex_app;
-- cortex_scheduler finds what is due across orgs. It sees when, and not what.
grant select (org_id, call_id, settle_at) on external_call to cortex_scheduler;
create policy scheduler on external_call for select to cortex_scheduler using (true);
