update job set status = 'COMPLETED', result = $2, running_seconds = extract(epoch from plane_now() - created_at)
where id = $1 and kind = 'external' and status = 'RUNNING'
returning id
