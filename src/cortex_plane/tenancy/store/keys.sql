-- name: get
select id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at
from api_key where id = $1


-- name: insert
insert into api_key (
  org_id, id, name, kind, user_account_id, roles, platform, secret_hash, last_characters, expires_at, made_with,
  permissions, owner_id, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, person_behind($1, $13), $14)
returning id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at


-- name: list_page
select id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at
from api_key
where ($1::timestamptz is null or (created_at, id) < ($1, $2::uuid))
  and ($4::uuid is null or user_account_id = $4)
order by created_at desc, id desc
limit $3


-- name: maker
-- The member who made this key, with a key of theirs or in a browser.
select coalesce(k.owner_id, m.user_account_id) from api_key k left join api_key m on m.id = k.made_with where k.id = $1


-- name: origin
-- The key behind a credential: itself, or the one that a browser session came from; none behind a session that a mail opened.
select coalesce(s.key_id, k.id) as key_id, o.id is null or o.revoked_at is null
    and (o.expires_at is null or o.expires_at > plane_now()) as works
from (select $1::uuid as id) given
left join browser_session s on s.id = given.id
left join api_key k on k.id = given.id
left join api_key o on o.id = coalesce(s.key_id, k.id)
where s.id is not null or k.id is not null


-- name: revoke
-- The key, and every key of a person that was made with it, however far down. Keys of services stay: they are the org's.
with recursive ended as (
  select id from api_key where id = $1
  union
  select k.id from api_key k join ended e on k.made_with = e.id and k.kind = 'person'
)
update api_key k set revoked_at = plane_now()
from ended e
where k.id = e.id and k.revoked_at is null
returning k.id


-- name: revoke_all
update api_key set revoked_at = plane_now() where user_account_id = $1 and revoked_at is null
returning id
