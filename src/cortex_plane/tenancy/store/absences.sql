-- name: cancel
update member_absence set cancelled_at = plane_now()
where id = $1 and cancelled_at is null and ends_at > (select plane_now())
returning id


-- name: get
select a.id, a.user_account_id as member_id, u.display_name as member, a.delegate_id, d.display_name as delegate,
  a.starts_at, a.ends_at, a.reason, a.cancelled_at, a.created_by, a.created_at,
  case
    when a.cancelled_at is not null then 'cancelled'
    when a.ends_at <= (select plane_now()) then 'over'
    when a.starts_at <= (select plane_now()) then 'current'
    else 'planned'
  end as status
from member_absence a
join user_account u on u.org_id = a.org_id and u.id = a.user_account_id
join user_account d on d.org_id = a.org_id and d.id = a.delegate_id
where a.id = $1 and ($2::uuid is null or a.user_account_id = $2)


-- name: hold_people
-- Whoever is absent and whoever stands in, held as they are while it is written; in one order, as members are locked.
select id, display_name, roles, deactivated_at, plane_now() as now from user_account
where id = any ($1::uuid[])
order by id
for share


-- name: insert
insert into member_absence (org_id, id, user_account_id, delegate_id, starts_at, ends_at, reason, created_by)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: list_page
select a.id, a.user_account_id as member_id, u.display_name as member, a.delegate_id, d.display_name as delegate,
  a.starts_at, a.ends_at, a.reason, a.cancelled_at, a.created_by, a.created_at,
  case
    when a.cancelled_at is not null then 'cancelled'
    when a.ends_at <= (select plane_now()) then 'over'
    when a.starts_at <= (select plane_now()) then 'current'
    else 'planned'
  end as status
from member_absence a
join user_account u on u.org_id = a.org_id and u.id = a.user_account_id
join user_account d on d.org_id = a.org_id and d.id = a.delegate_id
where ($1::timestamptz is null or (a.created_at, a.id) < ($1, $2::uuid))
  and ($4::uuid is null or a.user_account_id = $4)
  and (not $5::boolean or a.cancelled_at is null and a.ends_at > (select plane_now()))
order by a.created_at desc, a.id desc
limit $3


-- name: one_at_a_time
-- Two absences of different people can close a circle together, so that an org makes one at a time.
select pg_advisory_xact_lock(hashtextextended($1::uuid::text, 3))


-- name: overlapping
select count(*) from member_absence
where user_account_id = $1 and cancelled_at is null and starts_at < $3 and ends_at > $2


-- name: reached
-- The absences that somebody's delegate leads to within a span, hop by hop.
with recursive reached as (
  select a.org_id, a.id, a.user_account_id as member_id, a.delegate_id, a.starts_at, a.ends_at
  from member_absence a
  where a.user_account_id = $1 and a.cancelled_at is null and a.starts_at < $3 and a.ends_at > $2
  union
  select a.org_id, a.id, a.user_account_id, a.delegate_id, a.starts_at, a.ends_at
  from reached r
  join member_absence a on a.org_id = r.org_id and a.user_account_id = r.delegate_id and a.cancelled_at is null
    and a.starts_at < least(r.ends_at, $3) and a.ends_at > greatest(r.starts_at, $2)
)
select member_id, delegate_id, starts_at, ends_at from reached
