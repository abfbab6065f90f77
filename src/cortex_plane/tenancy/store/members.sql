-- name: add_sponsor
update user_account set sponsors = sponsors || $2::uuid where id = $1 and id <> $2 and not $2 = any (sponsors)


-- name: first_admin
select id from user_account where 'admin' = any (roles) and deactivated_at is null
order by created_at, id
limit 1


-- name: get
select u.id, u.display_name, u.clearance, u.roles, u.deactivated_at, u.revision, u.created_at, u.updated_at,
  array(select t.team_id from team_member t where t.user_account_id = u.id order by t.created_at, t.team_id)
    as team_ids
from user_account u where u.id = $1


-- name: has_proven_channel
select has_proven_channel($1, $2, 'infinity')


-- name: hold_access
-- Whoever makes or ends a credential of this member waits here for the others who do.
select pg_advisory_xact_lock(hashtextextended($1::uuid::text || ':access', 0))


-- name: insert
insert into user_account (org_id, id, display_name, clearance, roles, sponsors) values ($1, $2, $3, $4, $5, $6)


-- name: join_teams
insert into team_member (org_id, team_id, user_account_id)
select $1, wanted, $2 from unnest($3::uuid[]) as wanted


-- name: leave_teams
delete from team_member where user_account_id = $1


-- name: list_page
select u.id, u.display_name, u.clearance, u.roles, u.deactivated_at, u.revision, u.created_at, u.updated_at,
  array(select t.team_id from team_member t where t.user_account_id = u.id order by t.created_at, t.team_id)
    as team_ids
from user_account u
where ($1::timestamptz is null or (u.created_at, u.id) < ($1, $2::uuid))
  and ($4::text is null or $4 = any (u.roles))
order by u.created_at desc, u.id desc
limit $3


-- name: lock_with_admins
-- The member and every active admin, held still in one order: an org must keep an admin, whoever changes whom.
select id, revision, roles, clearance, 'admin' = any (roles) and deactivated_at is null as is_admin from user_account
where id = $1 or (roles <> '{guest}' and 'admin' = any (roles) and deactivated_at is null)
order by id
for no key update


-- name: update
update user_account
set display_name = coalesce($2, display_name), clearance = coalesce($3, clearance), roles = coalesce($4, roles),
    deactivated_at = case
      when $5::boolean is null then deactivated_at
      when $5 then null
      else coalesce(deactivated_at, plane_now())
    end,
    access_ended_at = case when $5 is false then plane_now() else access_ended_at end,
    revision = revision + 1, updated_at = plane_now()
where id = $1
