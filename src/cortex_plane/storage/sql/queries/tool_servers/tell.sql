with forgotten as (
  delete from tool_server s where not exists (select from worker w where w.id = s.worker_id)
)
insert into tool_server (app, name, worker_id, state, reason, tools)
select $1, $2, w.id, $4, $5, $6 from worker w where w.id = $3
on conflict (app, name, worker_id) do update set
  state = excluded.state, reason = excluded.reason, tools = excluded.tools,
  since = case when tool_server.state = excluded.state then tool_server.since else plane_now() end
