-- What models were asked, what it took and what it cost; and the keys with which an org asks them itself.
--
-- `model_call` is append-only and written with the step that the answer became, or with whatever the attempt wrote next where
-- the answer was of no use: what was paid is counted.

create table model_call (
  org_id              uuid not null,
  id                  uuid not null,
  job_id              uuid not null,
  agent_id            uuid not null,
  session_id          uuid not null,
  step_index          integer not null,
  purpose             text not null,
  model               text not null,
  prompt_tokens       bigint not null,
  completion_tokens   bigint not null,
  -- Both are part of the prompt.
  cache_read_tokens   bigint not null,
  cache_write_tokens  bigint not null,
  -- Millionths of a US dollar; null where nobody knows the price.
  cost_micros         bigint,
  -- The provider did not say what it counted: the answer broke off.
  estimated           boolean not null,
  seconds             double precision not null,
  created_at          timestamptz not null,
  primary key (org_id, id),
  constraint fk_model_call_job foreign key (org_id, job_id) references job (org_id, id),
  constraint fk_model_call_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint fk_model_call_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_model_call_step check (step_index >= 0),
  constraint chk_model_call_purpose check (length(purpose) between 1 and 100),
  constraint chk_model_call_model check (length(model) between 1 and 500),
  constraint chk_model_call_tokens check (
    prompt_tokens >= 0 and completion_tokens >= 0 and cache_read_tokens >= 0 and cache_write_tokens >= 0),
  constraint chk_model_call_cost check (cost_micros >= 0),
  constraint chk_model_call_seconds check (seconds >= 0)
);
create index idx_model_call_job on model_call (org_id, job_id);
create index idx_model_call_session on model_call (org_id, session_id);
-- A budget of the day is looked up before every call.
create index idx_model_call_agent on model_call (org_id, agent_id, created_at)
  include (prompt_tokens, completion_tokens, cost_micros);
create index idx_model_call_time on model_call (org_id, created_at);

create table model_key (
  org_id           uuid not null,
  provider         text not null,
  sealed           bytea not null,
  last_characters  text not null,
  -- People keep their names here, whatever becomes of their accounts.
  set_by           text not null,
  created_at       timestamptz not null default plane_now(),
  updated_at       timestamptz not null default plane_now(),
  primary key (org_id, provider),
  constraint fk_model_key_org foreign key (org_id) references org (id),
  constraint chk_model_key_provider check (provider in ('anthropic', 'openai')),
  constraint chk_model_key_last check (length(last_characters) = 4)
);

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['model_call', 'model_key']
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

grant select, insert on model_call to cortex_app;
grant select, insert, update (sealed, last_characters, set_by, updated_at), delete on model_key to cortex_app;
