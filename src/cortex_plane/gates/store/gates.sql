-- name: bound
-- What a session is bound to and what its gates remember, with the time of that look.
select session_bound($1, $2) as bound, plane_now() as now


-- name: lock
-- Before the head of the session is locked: several jobs of a session may write what its gates remember.
select lock_gates($1, $2, plane_now())


-- name: record
-- Under the lock of the session's job.
select record_gates($1, $2, $3, plane_now())
