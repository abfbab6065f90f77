-- name: cancel_job
-- What nobody runs ends at once.
update job
set status = 'CANCELLED', open_approvals = 0, error_message = $2, runnable_at = null, next_retry_at = null, wake_at = null,
  holds = '{}', held_at = null,
  cancel_requested_at = coalesce(cancel_requested_at, plane_now())
where id = $1 and worker_id is null and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
returning session_id


-- name: cancel_open_jobs
-- Ordered, so that two terminations lock the same jobs in the same order. What a worker runs ends at its next safe point.
with open_jobs as (
  select id, worker_id from job where session_id = $1 and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
  order by id for no key update),
asked as (
  update job j set cancel_requested_at = coalesce(j.cancel_requested_at, plane_now()), cancel_reason = $2
  from open_jobs o where j.id = o.id and o.worker_id is not null)
update job j
set status = 'CANCELLED', open_approvals = 0, error_message = $2, runnable_at = null, next_retry_at = null, wake_at = null,
  holds = '{}', held_at = null
from open_jobs o where j.id = o.id and o.worker_id is null
returning j.id


-- name: get_checkpoint
select whole_checkpoint(checkpoint, memory) from job where id = $1


-- name: get_state
-- Agents could keep nothing before the release that stores it beside the checkpoint.
select memory -> 'working_data' from job where id = $1


-- name: list_current_calls
-- Those that have no outcome, and those that a checkpoint names.
select id, job_id, step_index, position, tool_name, tool_digest, arguments, read_only, on_uncertain, status, attempt,
  encode(input_hash, 'hex') as input_hash, edited,
  dispatch_before, settle_after, result, result_id, error, settled_by, created_at, finished_at
from tool_call where job_id = $1 and (finished_at is null or id = any ($2::uuid[])) order by step_index, position


-- name: has_begun
select j.memory is not null
  or exists (select from step s where s.org_id = j.org_id and s.job_id = j.id)
  or exists (select from tool_call c where c.org_id = j.org_id and c.job_id = j.id)
  or exists (select from journal_entry e where e.org_id = j.org_id and e.job_id = j.id)
from job j where j.id = $1


-- name: report_corruption
select report_corruption($1, $2, $3, $4)


-- name: list_log
-- The last twenty steps that are over: of a code agent its operations, of others their responses with their calls.
select l.step_index, left(l.step_id, 100) as step_id, l.started_at, l.finished_at, left(l.result_summary, 200) as result_summary,
  l.tool_calls
from (
  (select s.step_index, coalesce(c.names, 'answer') as step_id, s.started_at, coalesce(c.finished_at, s.created_at) as finished_at,
     coalesce(c.outcomes, s.response ->> 'text', '') as result_summary, c.calls::integer as tool_calls
   from job j
   join step s on s.org_id = j.org_id and s.job_id = j.id and s.step_index <= j.step_index
   cross join lateral (
     select count(*) as calls, max(t.finished_at) as finished_at,
       string_agg(t.tool_name || ': ' || t.status, '; ' order by t.position) as outcomes,
       (select string_agg(n.tool_name, ', ' order by n.first)
        from (select d.tool_name, min(d.position) as first from tool_call d
              where d.org_id = s.org_id and d.job_id = s.job_id and d.step_index = s.step_index group by d.tool_name) n) as names
     from tool_call t where t.org_id = s.org_id and t.job_id = s.job_id and t.step_index = s.step_index) c
   where j.id = $1 and not exists (select from journal_entry e where e.org_id = j.org_id and e.job_id = j.id)
   order by s.step_index desc limit 20)
  union all
  (select e.position, right(e.key, 100), e.created_at, e.finished_at,
     coalesce(e.error ->> 'message', e.result #>> '{}', ''), (e.kind in ('tool', 'approval'))::integer
   from journal_shown e where e.job_id = $1 and e.status <> 'open' and e.finished_at is not null
   order by e.position desc limit 20)) l
order by l.step_index


-- name: fail_job
update job
set status = 'FAILED', error_message = $2, holds = '{}', held_at = null, runnable_at = null, wake_at = null,
  open_approvals = 0
where id = $1 and worker_id is null and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
returning id


-- name: get_job
select j.id, j.session_id, j.agent_id, j.agent_version, j.kind, j.app, j.status, j.holds,
  j.holds <> '{}' and j.worker_id is not null as pending_pause,
  j.cancel_requested_at is not null and j.finished_at is null as pending_cancel, j.payload, j.result, j.step_index,
  j.running_seconds, j.epoch, j.deaths, j.wake_at, j.retry_count, j.max_retries, j.next_retry_at, j.open_approvals,
  j.error_message, j.resubmitted_from, j.caused_by, j.policies, j.created_at, j.updated_at, j.finished_at
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
where j.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by) or is_linked(s, $2))


-- name: list_job_history
select previous_status, new_status, metadata, created_at from job_history where job_id = $1 order by id


-- name: hold_job
-- A job that a worker runs keeps running to its boundary, or until `hold_by`; one that only waits for a worker is paused at once. One
-- that is held already is paused as it was asked first, by the sooner time.
update job j
set holds = j.holds || $2::text, held_at = coalesce(j.held_at, t.at), runnable_at = null,
  pause = case
    when j.worker_id is not null then case when j.holds = '{}' then $3::jsonb else coalesce(j.pause, $3) end
      || jsonb_build_object('hold_by', least(t.at + make_interval(secs => $4), (j.pause ->> 'hold_by')::timestamptz))
    when j.holds = '{}' then $3::jsonb || jsonb_build_object('paused_at', t.at)
    else j.pause end
from (select plane_now() as at) t
where j.id = $1 and not $2 = any (j.holds)
returning j.status = 'RUNNING' and j.worker_id is null as pause_now, pause_data(j.pause, j.checkpoint, null) as data


-- name: shorten_pause
-- Of a job that somebody paused already and that still runs.
update job j set pause = j.pause || jsonb_build_object('hold_by', t.at)
from (select plane_now() + make_interval(secs => $2) as at) t
where j.id = $1 and j.worker_id is not null and (j.pause ->> 'hold_by')::timestamptz > t.at
returning t.at


-- name: insert_job
insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, max_retries, resubmitted_from, app,
  holds, held_at, runnable_at, caused_by, policies, status, submitted_by)
select $1, $2, s.id, a.id, a.config_version, $8, $5, $6, $7, case when $8 = 'external' then 'external' else coalesce(v.skill_config ->> 'app', 'plane') end,
  case when s.held_at is null then '{}' else array['session'] end, s.held_at,
  case when s.held_at is null then plane_now() end, $9::uuid, $10::jsonb,
  case when $8 = 'external' then 'RUNNING' else 'PENDING' end, $11::uuid
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
join session s on s.org_id = a.org_id and s.id = $3
where a.id = $4
returning id, session_id, agent_id, agent_version, kind, app, status, holds, false as pending_pause, false as pending_cancel, payload,
  result, step_index, running_seconds, epoch, deaths, wake_at, retry_count, max_retries, next_retry_at, open_approvals,
  error_message, resubmitted_from, caused_by, policies, created_at, updated_at, finished_at


-- name: lift_job_hold
-- Lifts these holds. With the last one the job may be claimed again, when its time has come.
update job
set holds = array(select h from unnest(holds) h where not h = any ($2::text[])),
  pause = case when holds <@ $2::text[] then null else pause end,
  held_at = case when holds <@ $2::text[] then null else held_at end,
  runnable_at = case when holds <@ $2::text[] and worker_id is null then case status
    when 'PENDING' then created_at when 'RETRY' then next_retry_at when 'SLEEPING' then wake_at end end
where id = $1 and holds && $2::text[] and status not in ('PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')
returning status, plane_now() as at


-- name: list_jobs
select j.id, j.session_id, j.agent_id, j.agent_version, j.kind, j.app, j.status, j.holds,
  j.holds <> '{}' and j.worker_id is not null as pending_pause,
  j.cancel_requested_at is not null and j.finished_at is null as pending_cancel, j.payload, j.result, j.step_index,
  j.running_seconds, j.epoch, j.deaths, j.wake_at, j.retry_count, j.max_retries, j.next_retry_at, j.open_approvals,
  j.error_message, j.resubmitted_from, j.caused_by, j.policies, j.created_at, j.updated_at, j.finished_at
from job j
where ($1::timestamptz is null or (j.created_at, j.id) < ($1, $2::uuid))
  and ($4::uuid is null or j.session_id = any (array(
    select s.id from session s where s.user_account_id = $4 or s.opened_by = $4)))
  and ($5::text is null or j.status = $5)
  and ($6::uuid is null or j.session_id = $6)
  and ($7::uuid is null or j.agent_id = $7)
order by j.created_at desc, j.id desc
limit $3


-- name: lock_job
select j.session_id, j.kind, j.status, j.holds, j.worker_id is not null as leased,
  j.cancel_requested_at is not null as cancelled, j.step_index
from job j
where j.id = $1 and ($2::uuid is null or exists (
  select from session s where s.org_id = j.org_id and s.id = j.session_id and $2 in (s.user_account_id, s.opened_by)))
for no key update of j


-- name: lock_open_job
-- Ordered, so that two requests lock the same jobs in the same order.
select id from job
where session_id = $1 and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
order by id for no key update


-- name: open_conversation
-- The job that answers a session now, if any.
select id from job
where session_id = $1 and kind = 'conversation' and status not in ('COMPLETED', 'FAILED', 'CANCELLED')


-- name: pause_of_job
-- What its pause receipt says: the checkpoint that it goes on from, since when it holds, and by when it will.
select checkpoint_key(j.checkpoint) as checkpoint_key, (j.pause ->> 'paused_at')::timestamptz as paused_at,
  case when j.worker_id is not null then (j.pause ->> 'hold_by')::timestamptz end as hold_by
from job j where j.id = $1


-- name: pause_job
update job set status = 'PAUSED' where id = $1 and status = 'RUNNING' and worker_id is null and holds <> '{}'


-- name: request_cancel
-- What a worker runs ends at its next safe point, so that no call is left without its outcome.
update job set cancel_requested_at = plane_now(), cancel_reason = $2
where id = $1 and worker_id is not null and cancel_requested_at is null
returning session_id


-- name: wake_job
-- A paused job goes on once nothing holds it.
update job
set holds = array(select h from unnest(holds) h where not h = any ($2::text[])),
  pause = case when holds <@ $2::text[] then null else pause end,
  held_at = case when holds <@ $2::text[] then null else held_at end,
  status = case when holds <@ $2::text[] then 'RUNNING' else status end,
  runnable_at = case when holds <@ $2::text[] then plane_now() end
where id = $1 and holds && $2::text[] and status = 'PAUSED'
returning status, plane_now() as at


-- name: answer_call
update tool_call
set status = $2, result = $3, error = $4, settled_by = $5,
  finished_at = case when $2 in ('completed', 'failed') then plane_now() end
where id = $1 and status = 'uncertain'
returning id


-- name: get_call
select id, job_id, step_index, position, tool_name, tool_digest, arguments, read_only, on_uncertain, status, attempt,
  encode(input_hash, 'hex') as input_hash, edited,
  dispatch_before, settle_after, result, result_id, error, settled_by, created_at, finished_at
from tool_call where job_id = $1 and id = $2


-- name: last_calls
-- Of the step that is under way, or of the last one.
select id, job_id, step_index, position, tool_name, tool_digest, arguments, read_only, on_uncertain, status, attempt,
  encode(input_hash, 'hex') as input_hash, edited,
  dispatch_before, settle_after, result, result_id, error, settled_by, created_at, finished_at
from tool_call
where job_id = $1 and step_index = (select max(step_index) from tool_call where job_id = $1)
order by position


-- name: list_steps
select s.step_index, s.response ->> 'text' as text, s.response ->> 'model' as model,
  s.response ->> 'stop_reason' as stop_reason, s.prompt_tokens, s.completion_tokens, s.started_at, s.created_at,
  coalesce((
    select jsonb_agg(jsonb_build_object(
      'id', c.id, 'tool_name', c.tool_name, 'arguments', c.arguments, 'status', c.status, 'read_only', c.read_only,
      'attempt', c.attempt, 'result', c.result, 'result_id', c.result_id, 'error', c.error,
      'settled_by', c.settled_by) order by c.position)
    from tool_call c where c.job_id = s.job_id and c.step_index = s.step_index), '[]') as calls
from step s
where s.job_id = $1 and s.step_index > $2
order by s.step_index
limit $3


-- name: open_calls
select id, job_id, step_index, position, tool_name, tool_digest, arguments, read_only, on_uncertain, status, attempt,
  encode(input_hash, 'hex') as input_hash, edited,
  dispatch_before, settle_after, result, result_id, error, settled_by, created_at, finished_at
from tool_call where job_id = $1 and finished_at is null order by step_index, position


-- name: list_step_messages
select m.seq, m.role, m.text, m.job_id, case when m.role = 'system' then message_author(m) end as by
from message m where m.session_id = $1 and m.seq > $2 and m.seq <= $3 order by m.seq


-- name: stored_result
select content from stored_result where job_id = $1 and id = $2


-- name: list_journal
select e.key, e.position, e.kind, e.name, e.input_hash, e.status, e.result, e.result_id, e.error, e.created_at, e.finished_at
from journal_shown e
where e.job_id = $1 and e.position > $2
order by e.position
limit $3


-- name: list_parked_jobs
-- Jobs of one status that were begun and that nobody runs, newest first, with the response in which each stands and its calls:
-- of a model's response all of them, of a code agent those that have no outcome. An agent that runs elsewhere is resumed there.
select j.id, j.session_id, j.agent_id, a.slug as agent, j.agent_version, j.kind, j.app, j.status, j.holds, j.payload,
  whole_checkpoint(j.checkpoint, j.memory)::text as checkpoint, j.checkpoint_mac, v.model_config, v.skill_config, v.resource_limits, j.created_at,
  a.repeats_steps, last.response, made.calls
from job j
join agent a on a.org_id = j.org_id and a.id = j.agent_id
join agent_version v on v.org_id = j.org_id and v.agent_id = j.agent_id and v.version = j.agent_version
join session s on s.org_id = j.org_id and s.id = j.session_id and s.kind <> 'external'
left join lateral (
  select t.step_index, t.response from step t
  where t.org_id = j.org_id and t.job_id = j.id
  order by t.step_index desc limit 1) last on true
cross join lateral (
  select coalesce(jsonb_agg(jsonb_build_object(
    'id', c.id, 'job_id', c.job_id, 'step_index', c.step_index, 'position', c.position, 'tool_name', c.tool_name,
    'tool_digest', c.tool_digest, 'arguments', c.arguments, 'read_only', c.read_only, 'on_uncertain', c.on_uncertain,
    'input_hash', encode(c.input_hash, 'hex'), 'edited', c.edited, 'status', c.status, 'attempt', c.attempt,
    'dispatch_before', c.dispatch_before, 'settle_after', c.settle_after, 'result', null, 'result_id', null,
    'error', c.error, 'settled_by', c.settled_by, 'created_at', c.created_at, 'finished_at', c.finished_at)
    order by c.step_index, c.position), '[]') as calls
  from tool_call c
  where c.org_id = j.org_id and c.job_id = j.id
    and (c.finished_at is null or (c.step_index = last.step_index and not v.skill_config ? 'run'))) made
where ($1::timestamptz is null or (j.created_at, j.id) < ($1, $2::uuid))
  and j.status = $4 and j.worker_id is null and j.epoch > 0
order by j.created_at desc, j.id desc
limit $3


-- name: get_plane_key
select fingerprint, previous, resealed_org_created_at, resealed_org, resealed_job from plane_key


-- name: lock_plane_key
select fingerprint, previous, resealed_org_created_at, resealed_org, resealed_job from plane_key for update


-- name: begin_rotation
update plane_key set fingerprint = $1, previous = $2, resealed_org_created_at = null, resealed_org = null, resealed_job = null


-- name: move_rotation
update plane_key set resealed_org_created_at = $1, resealed_org = $2, resealed_job = $3


-- name: end_rotation
update plane_key set previous = null, resealed_org_created_at = null, resealed_org = null, resealed_job = null


-- name: forget_ended_workers
delete from worker w where w.expires_at < (select plane_now())
  and not exists (select from find_orphans(null) o where o.worker_id = w.id)


-- name: list_checkpoints
select id, whole_checkpoint(checkpoint, memory)::text as checkpoint, checkpoint_mac as mac from job
where checkpoint is not null and id > $1 order by id limit $2 for no key update


-- name: set_checkpoint_macs
update job j set checkpoint_mac = m.mac from unnest($1::uuid[], $2::bytea[]) as m (id, mac) where j.id = m.id


-- name: list_workers
select w.id, w.name, w.host, w.pid, w.apps, w.concurrency, w.started_at, w.expires_at, w.stopped_at,
  w.stopped_at is null and w.expires_at > plane_now() as alive, w.claims_for as org_id
from worker w order by w.started_at desc limit 500


-- name: remember_plane_key
insert into plane_key (fingerprint) values ($1) on conflict do nothing


-- name: get_signal
select s.id, s.name, s.key, s.payload, s.sent_by, s.created_at from signal s where s.id = $1


-- name: list_signals
-- Newest first. Whoever is not staff sees what they sent.
select s.id, s.name, s.key, s.payload, s.sent_by, s.created_at
from signal s
where ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
  and ($4::uuid is null or s.sender_id = $4)
  and ($5::text is null or s.name = $5)
  and ($6::text is null or s.key = $6)
order by s.created_at desc, s.id desc
limit $3


-- name: list_signal_waits
-- What a job waits for or waited for, oldest first.
select w.entry, w.name, w.key, w.created_at, w.signal_id, w.payload, w.arrived_at
from job_wait w where w.job_id = $1
order by w.created_at, w.entry


-- name: sum_usage
-- By day of UTC, agent, job or model ($8): those below a key ($6), the highest first.
with calls as (
  select m.*, a.slug, case $8 when 'day' then to_char(m.created_at at time zone 'UTC', 'YYYY-MM-DD')
    when 'agent' then m.agent_id::text when 'job' then m.job_id::text else m.model end collate "C" as key
  from model_usage m
  join agent a on a.org_id = m.org_id and a.id = m.agent_id
  where ($1::uuid is null or exists (
      select from session s where s.org_id = m.org_id and s.id = m.session_id and $1 in (s.user_account_id, s.opened_by)))
    and ($2::timestamptz is null or m.created_at >= $2) and ($3::timestamptz is null or m.created_at < $3)
    and ($4::uuid is null or m.agent_id = $4) and ($5::uuid is null or m.job_id = $5))
select c.key, case when $8 = 'day' then c.key::date end as day,
  case when $8 in ('agent', 'job') then (array_agg(c.agent_id))[1] end as agent_id,
  case when $8 in ('agent', 'job') then min(c.slug) end as agent,
  case when $8 = 'job' then (array_agg(c.job_id))[1] end as job_id, case when $8 = 'model' then c.key end as model,
  count(*) as calls, sum(c.prompt_tokens)::bigint as prompt_tokens, sum(c.completion_tokens)::bigint as completion_tokens,
  sum(c.cache_read_tokens)::bigint as cache_read_tokens, sum(c.cache_write_tokens)::bigint as cache_write_tokens,
  sum(c.cost_micros)::bigint as cost_micros, count(*) filter (where c.cost_micros is null) as unpriced_calls,
  sum(c.seconds) as seconds
from calls c
where $6::text is null or c.key < $6
group by c.key
order by c.key desc
limit $7


-- name: list_job_usage
select count(*) as calls, coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
  coalesce(sum(completion_tokens), 0)::bigint as completion_tokens,
  coalesce(sum(cache_read_tokens), 0)::bigint as cache_read_tokens,
  coalesce(sum(cache_write_tokens), 0)::bigint as cache_write_tokens,
  sum(cost_micros)::bigint as cost_micros, count(*) filter (where cost_micros is null) as unpriced_calls,
  coalesce(sum(seconds), 0) as seconds
from model_usage where job_id = $1


-- name: spent_by_job
select coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint as tokens,
  coalesce(sum(cost_micros), 0)::bigint as cost_micros
from model_usage where job_id = $1


-- name: spent_today
-- The day by the plane's clock, and how much of it is left. What agents elsewhere report is a claim: it uses up nobody's day.
select coalesce(sum(m.prompt_tokens + m.completion_tokens), 0)::bigint as tokens,
  coalesce(sum(m.cost_micros), 0)::bigint as cost_micros,
  extract(epoch from t.day + interval '1 day' - t.now)::double precision as seconds_left
from (select n.now, date_trunc('day', n.now, 'UTC') as day from (select plane_now() as now) n) t
left join model_usage m on m.agent_id = $1 and m.created_at >= t.day and m.purpose <> 'reported'
group by t.day, t.now
