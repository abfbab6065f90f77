-- The job that answers a session now, if any.
select id from job
where session_id = $1 and kind = 'conversation' and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
