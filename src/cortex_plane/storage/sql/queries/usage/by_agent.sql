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
