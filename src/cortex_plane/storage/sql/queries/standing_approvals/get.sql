-- Whoever is not staff sees those of their own sessions, and those that they gave.
select *, plane_now() as now from standing_shown s
where s.id = $1 and ($2::uuid is null or $2 in (s.owner_id, s.opened_by, s.granted_by_id))
