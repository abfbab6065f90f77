select (select count(*) from session where agent_id = $1) as sessions,
  (select count(*) from job where agent_id = $1) as jobs
