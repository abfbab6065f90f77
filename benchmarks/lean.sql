-- The least that a durable step can write and keep its promises: the job with its checkpoint, the call, one entry of the job's own
-- hash chain. Three tables under forced row-level security, a fence of epoch and write number, and the chain in the job's row.
create table lean_job (
  org_id      uuid not null,
  id          uuid not null,
  epoch       bigint not null default 1,
  write_seq   bigint not null default 0,
  chain_hash  bytea not null default '',
  checkpoint  jsonb,
  mac         bytea,
  updated_at  timestamptz,
  primary key (org_id, id)
) with (fillfactor = 50);
alter table lean_job alter column checkpoint set storage external;
create table lean_call (
  org_id       uuid not null,
  id           uuid not null,
  job_id       uuid not null,
  step_index   integer not null,
  arguments    jsonb not null,
  input_hash   bytea not null,
  verdict      text not null,
  status       text not null,
  result       jsonb,
  created_at   timestamptz not null,
  finished_at  timestamptz,
  primary key (org_id, id)
) with (fillfactor = 70);
create table lean_entry (
  org_id      uuid not null,
  job_id      uuid not null,
  seq         bigint not null,
  action      text not null,
  body        bytea not null,
  hash        bytea not null,
  created_at  timestamptz not null,
  primary key (org_id, job_id, seq)
);
do $$
declare
  name text;
begin
  foreach name in array array['lean_job', 'lean_call', 'lean_entry'] loop
    execute format('alter table %I enable row level security', name);
    execute format('alter table %I force row level security', name);
    execute format($policy$
      create policy tenant on %I using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
    $policy$, name);
    execute format('grant select, insert, update on %I to cortex_app', name);
  end loop;
end
$$;

-- One commit. An outcome, an intent, or both: the outcome of the step before with the intent of this one.
create function lean_write(
  p_org uuid, p_job uuid, p_epoch bigint, p_write bigint, p_checkpoint text, p_mac bytea, p_done uuid, p_result text,
  p_call uuid, p_step integer, p_arguments text, p_input_hash bytea, p_action text, p_body bytea) returns timestamptz
  language plpgsql as $$
declare
  link bytea;
  at timestamptz := clock_timestamp();
begin
  perform set_config('app.org_id', p_org::text, true);
  update lean_job j
  set checkpoint = p_checkpoint::jsonb, mac = p_mac, write_seq = p_write, updated_at = at,
    chain_hash = sha256(j.chain_hash || int8send(p_write) || sha256(p_body))
  where j.org_id = p_org and j.id = p_job and j.epoch = p_epoch and j.write_seq = p_write - 1
  returning j.chain_hash into link;
  if link is null then
    return null;
  end if;
  if p_done is not null then
    update lean_call c set status = 'completed', result = p_result::jsonb, finished_at = at
    where c.org_id = p_org and c.id = p_done;
  end if;
  if p_call is not null then
    insert into lean_call (org_id, id, job_id, step_index, arguments, input_hash, verdict, status, created_at)
    values (p_org, p_call, p_job, p_step, p_arguments::jsonb, p_input_hash, 'allow', 'intended', at);
  end if;
  insert into lean_entry (org_id, job_id, seq, action, body, hash, created_at)
  values (p_org, p_job, p_write, p_action, p_body, link, at);
  return at;
end
$$;
