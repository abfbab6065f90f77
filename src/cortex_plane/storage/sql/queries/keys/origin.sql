-- The key behind a credential: itself, or the one that a browser session came from; none behind a session that a mail opened.
select coalesce(s.key_id, k.id) as key_id, o.id is null or o.revoked_at is null
    and (o.expires_at is null or o.expires_at > plane_now()) as works
from (select $1::uuid as id) given
left join browser_session s on s.id = given.id
left join api_key k on k.id = given.id
left join api_key o on o.id = coalesce(s.key_id, k.id)
where s.id is not null or k.id is not null
