-- name: delete
delete from browser_session where id = $1 returning id


-- name: end_links
delete from login_link where user_account_id = $1 and used_at is null
returning id


-- name: end_links_of_keys
delete from login_link where key_id = any ($1::uuid[]) and used_at is null


-- name: end_of_keys
delete from browser_session where key_id = any ($1::uuid[]) returning id


-- name: end_one
delete from browser_session where id = $1 and user_account_id = $2 returning id


-- name: end_sessions
delete from browser_session where user_account_id = $1 and ($2::uuid is null or id <> $2) returning id


-- name: forget_links
-- What is over and a day old, so that the table stays small.
delete from login_link where user_account_id = $1 and expires_at < plane_now() - interval '1 day'


-- name: forget_sessions
delete from browser_session
where user_account_id = $1 and (expires_at <= plane_now() or last_seen_at + $2::interval <= plane_now())


-- name: insert
insert into browser_session (org_id, id, user_account_id, secret_hash, expires_at, key_id, mac)
values ($1, $2, $3, $4, $5, $6, $7)


-- name: insert_link
insert into login_link (org_id, id, user_account_id, secret_hash, expires_at, issued_by, key_id, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: link_holder
select u.display_name, l.org_id, l.id, l.user_account_id, l.key_id, l.expires_at, l.secret_hash, l.mac
from login_link l join user_account u on u.id = l.user_account_id
where l.id = $1 and l.used_at is null and l.expires_at > plane_now() and u.deactivated_at is null
  and (l.key_id is null or exists (
    select from api_key k where k.id = l.key_id and k.revoked_at is null
      and (k.expires_at is null or k.expires_at > plane_now())))


-- name: link_member
select org_id, id, user_account_id, key_id, expires_at, secret_hash, mac from login_link where id = $1


-- name: list_page
-- Those that still work, with the moment at which they end where nobody visits any more.
select s.id, s.user_account_id as member_id, s.key_id, k.name as key_name, s.created_at, s.last_seen_at,
  least(s.expires_at, s.last_seen_at + $5::interval, k.expires_at) as expires_at
from browser_session s left join api_key k on k.id = s.key_id
where s.user_account_id = $4 and s.expires_at > plane_now() and s.last_seen_at + $5::interval > plane_now()
  and k.revoked_at is null and (k.expires_at is null or k.expires_at > plane_now())
  and ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
order by s.created_at desc, s.id desc
limit $3


-- name: use_link
-- One of two that come at the same instant waits for the other's row, and then finds it used.
update login_link l set used_at = plane_now()
from user_account u
where l.id = $1 and l.used_at is null and l.expires_at > plane_now()
  and u.id = l.user_account_id and u.deactivated_at is null
  and (l.key_id is null or exists (
    select from api_key k where k.id = l.key_id and k.revoked_at is null
      and (k.expires_at is null or k.expires_at > plane_now())))
returning u.id, u.display_name, u.roles, u.clearance, l.issued_by, l.key_id
