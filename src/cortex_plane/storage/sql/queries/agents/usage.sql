-- How much uses an agent; beyond a thousand it does not matter how much more.
select (select count(*) from (select from session where agent_id = $1 limit 1000) s) as sessions,
  (select count(*) from (select from job where agent_id = $1 limit 1000) j) as jobs
