-- What an org's remote workers published of their tools. It counts in that org alone, and no other org reads it: `known_tool` shows it
-- beside what workers at the database publish for all orgs.
create table org_tool_version (
  org_id uuid not null references org (id),
  app text not null,
  name text not null,
  digest text not null,
  description text not null,
  parameters jsonb not null,
  read_only boolean not null,
  risk text not null,
  timeout_seconds double precision not null,
  on_uncertain text,
  server text,
  remote_name text,
  implementation text,
  hints jsonb,
  declares_risk boolean not null,
  published_at timestamptz not null default plane_now(),
  constraint chk_org_tool_version_digest check (digest ~ '^[a-f0-9]{64}$')
);
alter table org_tool_version add primary key (org_id, app, name, digest);
create index idx_org_tool_version_name on org_tool_version (org_id, name, app, published_at desc);
grant select, insert, delete, update (published_at, declares_risk) on org_tool_version to cortex_app;
alter table org_tool_version enable row level security;
alter table org_tool_version force row level security;
create policy tenant on org_tool_version
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);

-- Remote workers publish theirs again, into the table above, when they connect.
delete from tool_version where publisher is not null;
alter table tool_version drop column publisher;
