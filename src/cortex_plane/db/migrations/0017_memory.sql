-- What is kept of the part of a conversation that no longer fits into the model's window. Append-only: the newest row is what
-- the next job of the session begins with, the older ones tell how it came about.
create table session_memory (
  org_id       uuid not null,
  session_id   uuid not null,
  number       bigint not null,
  message_seq  bigint not null,
  summary      text not null,
  facts        jsonb not null,
  job_id       uuid not null,
  created_at   timestamptz not null,
  primary key (org_id, session_id, number),
  constraint fk_session_memory_session foreign key (org_id, session_id) references session (org_id, id),
  constraint fk_session_memory_job foreign key (org_id, job_id) references job (org_id, id),
  constraint chk_session_memory_number check (number > 0),
  constraint chk_session_memory_message_seq check (message_seq >= 0),
  constraint chk_session_memory_summary check (octet_length(summary) <= 8192),
  constraint chk_session_memory_facts check (jsonb_typeof(facts) = 'array' and jsonb_array_length(facts) <= 50)
);
create index idx_session_memory_job on session_memory (org_id, job_id);

alter table session_memory enable row level security;
alter table session_memory force row level security;
create policy tenant on session_memory
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);
grant select, insert on session_memory to cortex_app;

-- A resume loads what no memory covers, and no more.
drop function if exists job_past(uuid, uuid, uuid, bigint, boolean);
