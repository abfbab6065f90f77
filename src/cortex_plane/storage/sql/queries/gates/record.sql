-- Under the lock of the session's job.
select record_gates($1, $2, $3, plane_now())
