-- Ordered, so that two requests lock the same jobs in the same order.
select id from job
where session_id = $1 and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
order by id for no key update
