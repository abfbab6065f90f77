-- Whoever is not staff sees those of their own sessions, and those that they gave.
select *, plane_now() as now from standing_shown s
where ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
  and ($4::uuid is null or $4 in (s.owner_id, s.opened_by, s.granted_by_id))
  and ($5::uuid is null or s.session_id = $5)
  and (not $6::boolean or s.revoked_at is null and s.expires_at > (select plane_now())
    and (s.max_calls is null or s.used_calls < s.max_calls))
order by s.created_at desc, s.id desc
limit $3
