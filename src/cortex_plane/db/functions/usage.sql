-- What the model was asked since the last write of an attempt, as rows: see record_more. The answer of a step is not among it: it
-- stands with the step.
create or replace function record_usage(p_org uuid, p_job uuid, p_session uuid, p_calls jsonb, p_now timestamptz)
  returns void language plpgsql set search_path = public, pg_temp as $$
begin
  insert into model_call (org_id, id, job_id, agent_id, session_id, step_index, purpose, model, prompt_tokens,
    completion_tokens, cache_read_tokens, cache_write_tokens, cost_micros, estimated, seconds, created_at)
  select p_org, c.id, p_job, j.agent_id, p_session, c.step_index, c.purpose, c.model, c.prompt_tokens,
    c.completion_tokens, c.cache_read_tokens, c.cache_write_tokens, c.cost_micros, c.estimated, c.seconds, p_now
  from jsonb_to_recordset(p_calls) c (
    id uuid, step_index integer, purpose text, model text, prompt_tokens bigint, completion_tokens bigint,
    cache_read_tokens bigint, cache_write_tokens bigint, cost_micros bigint, estimated boolean, seconds double precision)
  join job j on j.org_id = p_org and j.id = p_job;
end
$$;

-- Every answer of a model, wherever it stands.
drop view if exists model_usage;
create view model_usage with (security_invoker = true) as
  select m.org_id, m.job_id, m.agent_id, m.session_id, m.step_index, m.purpose, m.model, m.prompt_tokens, m.completion_tokens,
    m.cache_read_tokens, m.cache_write_tokens, m.cost_micros, m.estimated, m.seconds, m.created_at
  from model_call m
  union all
  select s.org_id, s.job_id, s.agent_id, j.session_id, s.step_index, 'step', s.model, s.prompt_tokens::bigint,
    s.completion_tokens::bigint, s.cache_read_tokens, s.cache_write_tokens, s.cost_micros, s.estimated, s.seconds, s.created_at
  from step s join job j on j.org_id = s.org_id and j.id = s.job_id
  where s.model is not null;
grant select on model_usage to cortex_app;
