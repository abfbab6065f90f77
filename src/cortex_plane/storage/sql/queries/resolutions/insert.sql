insert into resolution (org_id, id, trace_id, session_id, asker, goal_hash, request, answer, atlases, expires_at, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
