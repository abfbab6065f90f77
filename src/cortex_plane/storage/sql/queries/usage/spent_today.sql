-- The day by the plane's clock, and how much of it is left.
select coalesce(sum(m.prompt_tokens + m.completion_tokens), 0)::bigint as tokens,
  coalesce(sum(m.cost_micros), 0)::bigint as cost_micros,
  extract(epoch from t.day + interval '1 day' - t.now)::double precision as seconds_left
from (select n.now, date_trunc('day', n.now, 'UTC') as day from (select plane_now() as now) n) t
left join model_call m on m.agent_id = $1 and m.created_at >= t.day
group by t.day, t.now
