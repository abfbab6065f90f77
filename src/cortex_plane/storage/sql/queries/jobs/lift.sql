-- Lifts these holds. With the last one the job may be claimed again, when its time has come.
update job
set holds = array(select h from unnest(holds) h where not h = any ($2::text[])),
  held_at = case when holds <@ $2::text[] then null else held_at end,
  runnable_at = case when holds <@ $2::text[] and worker_id is null then case status
    when 'PENDING' then created_at when 'RETRY' then next_retry_at when 'SLEEPING' then wake_at end end
where id = $1 and holds && $2::text[] and status not in ('PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')
returning id
