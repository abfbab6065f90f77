-- Ordered, so that two terminations lock the same jobs in the same order.
update job set status = 'CANCELLED', open_approvals = 0, error_message = $2
where id in (
  select id from job where session_id = $1 and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
  order by id for no key update)
returning id
