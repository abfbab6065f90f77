-- As the workers that are there have them.
select s.app, s.name, w.name as worker, s.state, s.since, s.reason, s.tools
from tool_server s
join worker w on w.id = s.worker_id
where w.stopped_at is null and w.expires_at > (select plane_now())
order by s.app, s.name, w.name
limit 1000
