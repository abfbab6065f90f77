-- name: forget
delete from tool_server where worker_id = $1


-- name: list_all
-- As the workers that are there have them.
select s.app, s.name, w.name as worker, s.state, s.since, s.reason, s.tools
from tool_server s
join worker w on w.id = s.worker_id
where w.stopped_at is null and w.expires_at > (select plane_now())
order by s.app, s.name, w.name
limit 1000


-- name: tell
with forgotten as (
  delete from tool_server s where not exists (select from worker w where w.id = s.worker_id)
)
insert into tool_server (app, name, worker_id, state, reason, tools)
select $1, $2, w.id, $4, $5, $6 from worker w where w.id = $3
on conflict (app, name, worker_id) do update set
  state = excluded.state, reason = excluded.reason, tools = excluded.tools,
  since = case when tool_server.state = excluded.state then tool_server.since else plane_now() end
