-- Signals, and the jobs that wait for them.
--
-- The first payload for a name and a key is kept. Whoever sends and whoever goes to sleep take the same advisory lock on
-- (org, name, key) before anything else: one of them comes second, and sees what the first one wrote.

create table signal (
  org_id      uuid not null references org (id),
  id          uuid not null,
  name        text not null,
  key         text not null,
  payload     jsonb not null,
  -- People and programs keep their names here, whatever becomes of their accounts and keys.
  sent_by     text not null,
  sender_id   uuid not null,
  created_at  timestamptz not null,
  -- When everybody who waited was told. More jobs than one transaction wakes are woken by several.
  told_at     timestamptz,
  primary key (org_id, id),
  constraint uq_signal_key unique (org_id, name, key),
  constraint chk_signal_name check (length(name) between 1 and 200),
  constraint chk_signal_key check (length(key) between 1 and 255),
  constraint chk_signal_payload check (pg_column_size(payload) <= 512 * 1024)
);
create index idx_signal_list on signal (org_id, created_at desc, id desc);
create index idx_signal_name on signal (org_id, name, created_at desc, id desc);
create index idx_signal_age on signal (created_at);
create index idx_signal_untold on signal (created_at) where told_at is null;

create table job_wait (
  org_id      uuid not null,
  job_id      uuid not null,
  entry       text not null,
  name        text not null,
  key         text not null,
  created_at  timestamptz not null,
  signal_id   uuid,
  payload     jsonb,
  arrived_at  timestamptz,
  primary key (org_id, job_id, entry),
  constraint fk_job_wait_job foreign key (org_id, job_id) references job (org_id, id),
  -- What arrived stays with its job, also when the signal itself is forgotten.
  constraint fk_job_wait_signal foreign key (org_id, signal_id) references signal (org_id, id)
    on delete set null (signal_id),
  constraint chk_job_wait_entry check (length(entry) between 1 and 1000),
  constraint chk_job_wait_name check (length(name) between 1 and 200),
  constraint chk_job_wait_key check (length(key) between 1 and 255),
  constraint chk_job_wait_arrived check (
    (arrived_at is null) = (payload is null) and (arrived_at is not null or signal_id is null))
) with (fillfactor = 80);
create index idx_job_wait_open on job_wait (org_id, name, key, job_id) where arrived_at is null;
create index idx_job_wait_signal on job_wait (org_id, signal_id) where signal_id is not null;

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['signal', 'job_wait']
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

grant select, insert, update (told_at) on signal to cortex_app;
grant select, insert, update (signal_id, payload, arrived_at) on job_wait to cortex_app;

-- cortex_scheduler finds signals that not everybody was told of, and forgets what nobody needs any more, of any org. It
-- sees names and times, and not what was said.
grant select (org_id, id, created_at, told_at), delete on signal to cortex_scheduler;
create policy scheduler on signal for select to cortex_scheduler using (true);
create policy scheduler_deletes on signal for delete to cortex_scheduler using (true);
grant select (org_id, job_id, entry, signal_id, arrived_at), delete on job_wait to cortex_scheduler;
create policy scheduler on job_wait for select to cortex_scheduler using (true);
create policy scheduler_deletes on job_wait for delete to cortex_scheduler using (true);
grant select (org_id, id, status) on job to cortex_scheduler;
create policy scheduler_of_waits on job for select to cortex_scheduler using (true);
