-- What readers of events need beside the events themselves.

-- What a model says while it still speaks. Numbered in the session's sequence of events like everything else, but kept
-- apart from them: events are never changed, and these rows disappear once the step that they belong to is durable.
create table text_chunk (
  org_id      uuid not null,
  session_id  uuid not null,
  seq         bigint not null,
  job_id      uuid not null,
  step_index  integer not null,
  epoch       bigint not null,
  text        text not null,
  created_at  timestamptz not null default plane_now(),
  primary key (org_id, session_id, seq)
) with (autovacuum_vacuum_scale_factor = 0.05);
create index idx_text_chunk_step on text_chunk (org_id, job_id, step_index);

-- Whoever waits for decisions watches the whole org. Other events do not touch this index.
create index idx_event_approvals on event (org_id, created_at) where type in (
  'approval_requested', 'approval_joined', 'approval_edited', 'approval_decided', 'approval_expired',
  'approval_cancelled', 'approval_reminded', 'approval_escalated', 'effect_settled');

alter table text_chunk enable row level security;
alter table text_chunk force row level security;
create policy tenant on text_chunk
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);
grant select, insert, delete on text_chunk to cortex_app;

-- cortex_scheduler deletes what was left behind, of any org. It sees how old a chunk is, and not what it says.
grant select (org_id, session_id, seq, created_at), delete on text_chunk to cortex_scheduler;
create policy scheduler on text_chunk for select to cortex_scheduler using (true);
create policy scheduler_deletes on text_chunk for delete to cortex_scheduler using (true);
