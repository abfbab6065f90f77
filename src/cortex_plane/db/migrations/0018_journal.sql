-- The journal of a code agent's job: one row for each operation of its code. A job that goes on reads all of them, in one
-- round trip, and its code gets what was recorded instead of doing it again.
--
-- What a tool call or a request to people came to stands in the ledger, and what a model said in the step, each under the
-- position of its entry: here is only that they were begun.

create table journal_entry (
  org_id       uuid not null,
  job_id       uuid not null,
  key          text not null,
  position     integer not null,
  kind         text not null,
  name         text not null,
  input_hash   bytea not null,
  status       text not null,
  result       jsonb,
  result_id    uuid,
  error        jsonb,
  created_at   timestamptz not null,
  finished_at  timestamptz,
  primary key (org_id, job_id, key),
  constraint fk_journal_entry_job foreign key (org_id, job_id) references job (org_id, id),
  constraint chk_journal_entry_key check (length(key) between 1 and 1000),
  constraint chk_journal_entry_name check (length(name) between 1 and 200),
  constraint chk_journal_entry_position check (position >= 0),
  constraint chk_journal_entry_kind check (
    kind in ('step', 'tool', 'model', 'approval', 'sleep', 'wait', 'value', 'gather')),
  constraint chk_journal_entry_status check (status in ('open', 'done', 'failed')),
  constraint chk_journal_entry_end check ((status = 'open') = (finished_at is null)),
  constraint chk_journal_entry_error check (status = 'failed' or error is null),
  constraint chk_journal_entry_hash check (length(input_hash) = 32)
) with (fillfactor = 90);

-- Several steps of a job may be told at once: an answer that breaks off is void alone.
drop function if exists void_chunks(uuid, uuid, bigint);

-- Row-level security and rights -----------------------------------------------------------------------------

alter table journal_entry enable row level security;
alter table journal_entry force row level security;
create policy tenant on journal_entry
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);

grant select, insert, update (status, result, result_id, error, finished_at) on journal_entry to cortex_app;
