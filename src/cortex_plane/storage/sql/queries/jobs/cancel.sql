update job set status = 'CANCELLED', open_approvals = 0, error_message = $2
where id = $1 and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
returning session_id
