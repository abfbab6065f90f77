-- A paused job goes on once nothing holds it.
update job
set holds = array(select h from unnest(holds) h where not h = any ($2::text[])),
  held_at = case when holds <@ $2::text[] then null else held_at end,
  status = case when holds <@ $2::text[] then 'RUNNING' else status end,
  runnable_at = case when holds <@ $2::text[] then plane_now() end
where id = $1 and holds && $2::text[] and status = 'PAUSED'
returning status
