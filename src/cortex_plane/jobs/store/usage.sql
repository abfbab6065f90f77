-- name: by_agent
select m.agent_id::text as key, null::date as day, m.agent_id, min(a.slug) as agent, null::uuid as job_id, null::text as model,
  count(*) as calls, sum(m.prompt_tokens)::bigint as prompt_tokens, sum(m.completion_tokens)::bigint as completion_tokens,
  sum(m.cache_read_tokens)::bigint as cache_read_tokens, sum(m.cache_write_tokens)::bigint as cache_write_tokens,
  sum(m.cost_micros)::bigint as cost_micros, count(*) filter (where m.cost_micros is null) as unpriced_calls,
  sum(m.seconds) as seconds
from model_call m
join agent a on a.org_id = m.org_id and a.id = m.agent_id
where ($1::uuid is null or exists (
    select from session s where s.org_id = m.org_id and s.id = m.session_id and $1 in (s.user_account_id, s.opened_by)))
  and ($2::timestamptz is null or m.created_at >= $2) and ($3::timestamptz is null or m.created_at < $3)
  and ($4::uuid is null or m.agent_id = $4) and ($5::uuid is null or m.job_id = $5)
group by m.agent_id
having $6::text is null or m.agent_id::text collate "C" < $6
order by m.agent_id::text collate "C" desc
limit $7


-- name: by_day
select to_char(m.created_at at time zone 'UTC', 'YYYY-MM-DD') as key, min(m.created_at at time zone 'UTC')::date as day, null::uuid as agent_id, null::text as agent, null::uuid as job_id, null::text as model,
  count(*) as calls, sum(m.prompt_tokens)::bigint as prompt_tokens, sum(m.completion_tokens)::bigint as completion_tokens,
  sum(m.cache_read_tokens)::bigint as cache_read_tokens, sum(m.cache_write_tokens)::bigint as cache_write_tokens,
  sum(m.cost_micros)::bigint as cost_micros, count(*) filter (where m.cost_micros is null) as unpriced_calls,
  sum(m.seconds) as seconds
from model_call m
join agent a on a.org_id = m.org_id and a.id = m.agent_id
where ($1::uuid is null or exists (
    select from session s where s.org_id = m.org_id and s.id = m.session_id and $1 in (s.user_account_id, s.opened_by)))
  and ($2::timestamptz is null or m.created_at >= $2) and ($3::timestamptz is null or m.created_at < $3)
  and ($4::uuid is null or m.agent_id = $4) and ($5::uuid is null or m.job_id = $5)
group by to_char(m.created_at at time zone 'UTC', 'YYYY-MM-DD')
having $6::text is null or to_char(m.created_at at time zone 'UTC', 'YYYY-MM-DD') collate "C" < $6
order by to_char(m.created_at at time zone 'UTC', 'YYYY-MM-DD') collate "C" desc
limit $7


-- name: by_job
select m.job_id::text as key, null::date as day, (array_agg(m.agent_id))[1] as agent_id, min(a.slug) as agent, m.job_id, null::text as model,
  count(*) as calls, sum(m.prompt_tokens)::bigint as prompt_tokens, sum(m.completion_tokens)::bigint as completion_tokens,
  sum(m.cache_read_tokens)::bigint as cache_read_tokens, sum(m.cache_write_tokens)::bigint as cache_write_tokens,
  sum(m.cost_micros)::bigint as cost_micros, count(*) filter (where m.cost_micros is null) as unpriced_calls,
  sum(m.seconds) as seconds
from model_call m
join agent a on a.org_id = m.org_id and a.id = m.agent_id
where ($1::uuid is null or exists (
    select from session s where s.org_id = m.org_id and s.id = m.session_id and $1 in (s.user_account_id, s.opened_by)))
  and ($2::timestamptz is null or m.created_at >= $2) and ($3::timestamptz is null or m.created_at < $3)
  and ($4::uuid is null or m.agent_id = $4) and ($5::uuid is null or m.job_id = $5)
group by m.job_id
having $6::text is null or m.job_id::text collate "C" < $6
order by m.job_id::text collate "C" desc
limit $7


-- name: by_model
select m.model as key, null::date as day, null::uuid as agent_id, null::text as agent, null::uuid as job_id, m.model,
  count(*) as calls, sum(m.prompt_tokens)::bigint as prompt_tokens, sum(m.completion_tokens)::bigint as completion_tokens,
  sum(m.cache_read_tokens)::bigint as cache_read_tokens, sum(m.cache_write_tokens)::bigint as cache_write_tokens,
  sum(m.cost_micros)::bigint as cost_micros, count(*) filter (where m.cost_micros is null) as unpriced_calls,
  sum(m.seconds) as seconds
from model_call m
join agent a on a.org_id = m.org_id and a.id = m.agent_id
where ($1::uuid is null or exists (
    select from session s where s.org_id = m.org_id and s.id = m.session_id and $1 in (s.user_account_id, s.opened_by)))
  and ($2::timestamptz is null or m.created_at >= $2) and ($3::timestamptz is null or m.created_at < $3)
  and ($4::uuid is null or m.agent_id = $4) and ($5::uuid is null or m.job_id = $5)
group by m.model
having $6::text is null or m.model collate "C" < $6
order by m.model collate "C" desc
limit $7


-- name: of_job
select count(*) as calls, coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
  coalesce(sum(completion_tokens), 0)::bigint as completion_tokens,
  coalesce(sum(cache_read_tokens), 0)::bigint as cache_read_tokens,
  coalesce(sum(cache_write_tokens), 0)::bigint as cache_write_tokens,
  sum(cost_micros)::bigint as cost_micros, count(*) filter (where cost_micros is null) as unpriced_calls,
  coalesce(sum(seconds), 0) as seconds
from model_call where job_id = $1


-- name: spent_by_job
select coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint as tokens,
  coalesce(sum(cost_micros), 0)::bigint as cost_micros
from model_call where job_id = $1


-- name: spent_today
-- The day by the plane's clock, and how much of it is left.
select coalesce(sum(m.prompt_tokens + m.completion_tokens), 0)::bigint as tokens,
  coalesce(sum(m.cost_micros), 0)::bigint as cost_micros,
  extract(epoch from t.day + interval '1 day' - t.now)::double precision as seconds_left
from (select n.now, date_trunc('day', n.now, 'UTC') as day from (select plane_now() as now) n) t
left join model_call m on m.agent_id = $1 and m.created_at >= t.day
group by t.day, t.now
