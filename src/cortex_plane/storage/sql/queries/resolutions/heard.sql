-- Whether this goal was named in the session before.
select exists (select from resolution r where r.session_id = $1 and r.goal_hash = $2)
