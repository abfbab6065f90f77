-- name: get
select c.id, c.app, c.tool_name, c.digest, c.read_only, c.idempotent, c.risk, c.note, c.confirmed_by, c.created_at,
  c.revoked_at, c.revoked_by,
  coalesce(c.digest = (
    select v.digest from tool_version v where v.app = c.app and v.name = c.tool_name order by v.published_at desc limit 1
  ), false) as current
from tool_confirmation c
where c.id = $1


-- name: holding
-- What counts when a call is judged. What was confirmed about an older version is found by its digest, and by no newer one.
select c.app, c.tool_name, c.digest, c.read_only, c.idempotent, c.risk
from tool_confirmation c
where c.revoked_at is null


-- name: insert
insert into tool_confirmation (
  org_id, id, app, tool_name, digest, read_only, idempotent, risk, note, confirmed_by, confirmed_by_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)


-- name: list_page
select c.id, c.app, c.tool_name, c.digest, c.read_only, c.idempotent, c.risk, c.note, c.confirmed_by, c.created_at,
  c.revoked_at, c.revoked_by,
  coalesce(c.digest = (
    select v.digest from tool_version v where v.app = c.app and v.name = c.tool_name order by v.published_at desc limit 1
  ), false) as current
from tool_confirmation c
where ($1::timestamptz is null or (c.created_at, c.id) < ($1, $2::uuid))
  and (not $4::boolean or c.revoked_at is null)
order by c.created_at desc, c.id desc
limit $3


-- name: raise_version
update org set confirmation_version = confirmation_version + 1 where id = $1


-- name: revoke
-- What holds for this tool, if anything, holds no more.
update tool_confirmation set revoked_at = plane_now(), revoked_by = $3
where app = $1 and tool_name = $2 and revoked_at is null
returning id
