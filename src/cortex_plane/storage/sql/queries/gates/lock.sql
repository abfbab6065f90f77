-- Before the head of the session is locked: several jobs of a session may write what its gates remember.
select lock_gates($1, $2, plane_now())
