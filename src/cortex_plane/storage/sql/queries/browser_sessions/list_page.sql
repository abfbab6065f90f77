-- Those that still work, with the moment at which they end where nobody visits any more.
select s.id, s.user_account_id as member_id, s.key_id, k.name as key_name, s.created_at, s.last_seen_at,
  least(s.expires_at, s.last_seen_at + $5::interval, k.expires_at) as expires_at
from browser_session s left join api_key k on k.id = s.key_id
where s.user_account_id = $4 and s.expires_at > plane_now() and s.last_seen_at + $5::interval > plane_now()
  and k.revoked_at is null and (k.expires_at is null or k.expires_at > plane_now())
  and ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
order by s.created_at desc, s.id desc
limit $3
