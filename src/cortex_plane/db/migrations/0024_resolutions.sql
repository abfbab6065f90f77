-- What an agent that runs elsewhere was told that it may do, and what it did under it.

-- What is told of atlases is kept by reference: their versions do not change. Of what was asked, the digest of its arguments is
-- kept and not they themselves. Where something was executed under it the row stays, and its bodies go after a while.
create table resolution (
  org_id      uuid not null,
  id          uuid not null,
  trace_id    uuid not null,
  session_id  uuid not null,
  asker       uuid not null,
  goal_hash   bytea,
  request     jsonb not null,
  answer      jsonb not null,
  atlases     jsonb not null,
  expires_at  timestamptz not null,
  created_at  timestamptz not null default plane_now(),
  executed    boolean not null default false,
  emptied_at  timestamptz,
  primary key (org_id, id),
  constraint fk_resolution_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_resolution_goal_hash check (octet_length(goal_hash) = 32),
  constraint chk_resolution_atlases check (jsonb_typeof(atlases) = 'array'),
  constraint chk_resolution_expiry check (expires_at > created_at)
);
-- Also finds whether a session has heard a goal before.
create index idx_resolution_session on resolution (org_id, session_id, goal_hash);
-- How many of a session hold.
create index idx_resolution_live on resolution (org_id, session_id, expires_at);
-- What is left to forget: neither grows with what was executed and emptied long ago.
create index idx_resolution_unused on resolution (expires_at) where not executed;
create index idx_resolution_bodies on resolution (expires_at) where executed and emptied_at is null;

-- A call is executed under one resolution, or under none.
create table resolution_call (
  org_id         uuid not null,
  call_id        uuid not null,
  resolution_id  uuid not null,
  primary key (org_id, call_id),
  constraint fk_resolution_call_call foreign key (org_id, call_id) references external_call (org_id, call_id),
  constraint fk_resolution_call_resolution foreign key (org_id, resolution_id) references resolution (org_id, id)
);
create index idx_resolution_call_resolution on resolution_call (org_id, resolution_id);

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  one text;
begin
  foreach one in array array['resolution', 'resolution_call'] loop
    execute format('alter table %I enable row level security', one);
    execute format('alter table %I force row level security', one);
    execute format($p$create policy tenant on %I
      using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
      with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid)$p$, one);
    execute format('grant select, insert on %I to cortex_app', one);
  end loop;
end
$$;
grant update (executed) on resolution to cortex_app;

-- Old ones are forgotten across orgs.
create policy scheduler on resolution for select to cortex_scheduler using (true);
create policy scheduler_deletes on resolution for delete to cortex_scheduler using (true);
create policy scheduler_updates on resolution for update to cortex_scheduler using (true) with check (true);
grant select (org_id, id, expires_at, executed, emptied_at), delete, update (request, answer, atlases, emptied_at)
  on resolution to cortex_scheduler;

-- They say, and take, more now: what a session is bound to, and what its gates remember from here on.
drop function if exists call_context(uuid, uuid, uuid, text, text, bytea);
drop function if exists authorize_call(
  uuid, uuid, uuid, text, bytea, text, text, text, text, text, bytea, boolean, text, text, double precision, uuid, text, text,
  text, text, text, double precision, uuid, integer, text, uuid, uuid, uuid, text[], jsonb[], text[], bytea[]);
drop function if exists intend_call(
  uuid, uuid, text, integer, text, text, double precision, uuid, text, text, boolean, uuid, integer, uuid, text[], jsonb[],
  text[], bytea[]);
drop function if exists settle_call(uuid, uuid, uuid, uuid, integer, text, text, text, text, text, bytea);
