-- The state of a run that an agent elsewhere keeps here, so that another process goes on with it. It is the framework's own text.
create table session_state (
  org_id uuid not null,
  session_id uuid not null,
  -- Each write is the next one, and names the one that it replaces.
  version integer not null,
  -- Null where no run waits.
  text text,
  mac bytea not null,
  saved_at timestamptz not null default plane_now(),
  constraint fk_session_state_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_session_state_version check (version >= 1),
  constraint chk_session_state_text check (octet_length(text) between 1 and 1048576)
);
alter table session_state add primary key (org_id, session_id);
grant select, insert, delete, update (version, text, mac, saved_at) on session_state to cortex_app;
alter table session_state enable row level security;
alter table session_state force row level security;
create policy tenant on session_state
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);
