-- Standing approvals: a person's yes to more than one call of a session, bounded and revocable.
--
-- `used_calls` is raised in the transaction that writes the intent, together with a row of `standing_use`: what is counted
-- was allowed, and what was allowed is counted, once for each call.

create table standing_approval (
  org_id             uuid not null,
  id                 uuid not null,
  session_id         uuid not null,
  agent_id           uuid not null,
  tool_name          text not null,
  tool_digest        text not null,
  input_hash         bytea,
  condition          text,
  max_calls          integer,
  used_calls         integer not null default 0,
  expires_at         timestamptz not null,
  -- People keep their names here, whatever becomes of their accounts.
  granted_by         text not null,
  granted_by_id      uuid not null,
  approval_id        uuid not null,
  required           jsonb not null,
  reason             text,
  revoked_at         timestamptz,
  revoked_by         text,
  revocation_reason  text,
  created_at         timestamptz not null,
  last_used_at       timestamptz,
  primary key (org_id, id),
  constraint uq_standing_approval_approval unique (org_id, approval_id),
  constraint fk_standing_approval_session foreign key (org_id, session_id) references session (org_id, id),
  constraint fk_standing_approval_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint fk_standing_approval_granter foreign key (org_id, granted_by_id) references user_account (org_id, id),
  constraint fk_standing_approval_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint chk_standing_approval_hash check (length(input_hash) = 32),
  constraint chk_standing_approval_condition check (length(condition) between 1 and 2000),
  constraint chk_standing_approval_calls check (
    max_calls between 1 and 1000 and used_calls between 0 and max_calls or max_calls is null and used_calls >= 0),
  constraint chk_standing_approval_end check (
    expires_at > created_at and expires_at <= created_at + interval '7 days'),
  constraint chk_standing_approval_revoked check ((revoked_at is null) = (revoked_by is null))
) with (fillfactor = 80);
create index idx_standing_approval_session on standing_approval (org_id, session_id, tool_name)
  where revoked_at is null;
create index idx_standing_approval_of_session on standing_approval (org_id, session_id, created_at desc, id desc);
create index idx_standing_approval_agent on standing_approval (org_id, agent_id);
create index idx_standing_approval_granter on standing_approval (org_id, granted_by_id);
create index idx_standing_approval_list on standing_approval (org_id, created_at desc, id desc);

create table standing_use (
  org_id       uuid not null,
  standing_id  uuid not null,
  call_id      uuid not null,
  created_at   timestamptz not null,
  primary key (org_id, standing_id, call_id),
  constraint fk_standing_use_standing foreign key (org_id, standing_id) references standing_approval (org_id, id),
  constraint fk_standing_use_call foreign key (org_id, call_id) references tool_call (org_id, id)
);
create index idx_standing_use_call on standing_use (org_id, call_id);

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['standing_approval', 'standing_use']
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

grant select, insert, update (used_calls, last_used_at, revoked_at, revoked_by, revocation_reason)
  on standing_approval to cortex_app;
grant select, insert on standing_use to cortex_app;
