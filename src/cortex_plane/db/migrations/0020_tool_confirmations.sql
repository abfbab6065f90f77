-- Tools of MCP servers: what their servers say about them, what stewards confirm, and how the servers are.

-- What a server hints at is kept beside what is declared, and changes nothing by itself.
alter table tool_version
  add column server text,
  add column remote_name text,
  add column implementation text,
  add column hints jsonb;
-- A version that comes back, because a server was rolled back, is the newest again.
grant update (published_at) on tool_version to cortex_app;

-- Part of the name of the policies that hold: an intent written under an older confirmation is refused.
alter table org add column confirmation_version bigint not null default 0;

-- What a steward vouches for about one version of a tool, for one org.
create table tool_confirmation (
  org_id           uuid not null references org (id),
  id               uuid not null,
  app              text not null,
  tool_name        text not null,
  digest           text not null,
  read_only        boolean not null,
  idempotent       boolean not null,
  risk             text,
  note             text,
  confirmed_by     text not null,
  confirmed_by_id  uuid,
  created_at       timestamptz not null default plane_now(),
  revoked_at       timestamptz,
  revoked_by       text,
  primary key (org_id, id),
  constraint fk_tool_confirmation_account foreign key (org_id, confirmed_by_id) references user_account (org_id, id),
  constraint chk_tool_confirmation_digest check (digest ~ '^[a-f0-9]{64}$'),
  constraint chk_tool_confirmation_risk check (risk in ('low', 'medium', 'high', 'critical')),
  constraint chk_tool_confirmation_something check (read_only or idempotent or risk is not null),
  constraint chk_tool_confirmation_revoked check ((revoked_at is null) = (revoked_by is null))
);
create unique index uq_tool_confirmation_holding on tool_confirmation (org_id, app, tool_name) where revoked_at is null;
create index idx_tool_confirmation_account on tool_confirmation (org_id, confirmed_by_id);
create index idx_tool_confirmation_list on tool_confirmation (org_id, created_at desc, id desc);

-- How each worker's MCP servers are. Workers serve every org, and so do their servers. Rows of workers that were forgotten
-- go with the next one that is written.
create table tool_server (
  app        text not null,
  name       text not null,
  worker_id  uuid not null,
  state      text not null,
  since      timestamptz not null default plane_now(),
  reason     text,
  tools      integer not null default 0,
  primary key (app, name, worker_id),
  constraint chk_tool_server_state check (state in ('starting', 'up', 'down'))
);

-- Row-level security and rights -----------------------------------------------------------------------------

alter table tool_confirmation enable row level security;
alter table tool_confirmation force row level security;
create policy tenant on tool_confirmation
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);

grant select, insert, update (revoked_at, revoked_by) on tool_confirmation to cortex_app;
grant select, insert, delete, update (state, since, reason, tools) on tool_server to cortex_app;
