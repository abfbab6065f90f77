-- What a session is bound to and what its gates remember, with the time of that look.
select session_bound($1, $2) as bound, plane_now() as now
