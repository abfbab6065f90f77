-- A session of an agent that runs elsewhere may carry the name that its own world gave it: a thread, a conversation, a run. One of them is
-- open for each agent, name and identity that opened it.
alter table session add column outside_id text;
-- The identity that opened it: a person whatever key they use, or a service by its key.
alter table session add column outside_by uuid;
alter table session add constraint chk_session_outside check (
  ((outside_id is null) = (outside_by is null)) and ((outside_id is null) or (kind = 'external' and length(outside_id) between 1 and 255)));
create unique index uq_session_outside on session (org_id, agent_id, outside_by, outside_id)
  where ((outside_id is not null) and (status <> 'TERMINATED'));
create index idx_session_outside on session (org_id, outside_id, created_at desc, id desc) where (outside_id is not null);

-- The process that runs a call, as it names itself, and a hash of what was asked for: a second call of the same in another process, while
-- nobody knows what became of the first, is that first one.
alter table external_call add column runner text;
alter table external_call add column request_hash bytea;
alter table external_call add constraint chk_external_call_request_hash check (length(request_hash) = 32);
-- It began, and nothing has said yet what became of it: only such a call can be in doubt.
alter table external_call add column unsettled boolean not null default false;
-- Its agent itself reported that nobody knows whether the last attempt happened.
alter table external_call add column unknown_reported boolean not null default false;
-- How often it was parked since a person approved it.
alter table external_call add column parks integer not null default 0;
create index idx_external_call_request on external_call (org_id, agent_id, opener, request_hash) where unsettled;
grant update (runner, unsettled, unknown_reported, parks) on external_call to cortex_app;

-- Keys that were asked for while the same call was in doubt: they stand for that call, also after it is settled.
create table external_call_key (
  org_id uuid not null,
  agent_id uuid not null,
  -- As in external_call.
  opener uuid not null,
  key text not null,
  call_id uuid not null,
  request_hash bytea not null,
  created_at timestamptz not null default plane_now(),
  constraint fk_external_call_key_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint fk_external_call_key_call foreign key (org_id, call_id) references external_call (org_id, call_id),
  constraint chk_external_call_key_hash check (length(request_hash) = 32),
  constraint chk_external_call_key_key check (length(key) between 1 and 255)
);
alter table external_call_key add primary key (org_id, agent_id, opener, key);
create index idx_external_call_key_call on external_call_key (org_id, call_id);
grant select, insert on external_call_key to cortex_app;
alter table external_call_key enable row level security;
alter table external_call_key force row level security;
create policy tenant on external_call_key
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);
