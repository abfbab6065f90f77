-- name: add_set_up
update channel_connection set set_up_by = set_up_by || $2::uuid where id = $1 and not $2 = any (set_up_by)


-- name: get
select id, channel_type, name, config ->> 'url' as url, failing_since, disabled_at, disabled_reason, revision, created_at,
  updated_at
from channel_connection where id = $1


-- name: give_up
-- What waits for its next try failed within the last day, which is the longest that a webhook waits. Without such a one
-- nothing was sent lately, or nobody could: then nobody knows whether it would still fail.
update channel_connection c
set disabled_at = plane_now(), disabled_reason = $2, revision = c.revision + 1, updated_at = plane_now()
where c.id = $1 and c.disabled_at is null and c.failing_since <= plane_now() - $3::interval
  and exists (
    select from notification n
    where n.org_id = c.org_id and n.connection_id = c.id and n.status = 'pending' and n.attempts > 0
      and n.last_error is not null and n.next_attempt_at > plane_now())
returning c.name, c.failing_since


-- name: insert
insert into channel_connection (org_id, id, channel_type, name, config, sealed) values ($1, $2, $3, $4, $5, $6)
returning id, channel_type, name, config ->> 'url' as url, failing_since, disabled_at, disabled_reason, revision, created_at,
  updated_at


-- name: list_page
select id, channel_type, name, config ->> 'url' as url, failing_since, disabled_at, disabled_reason, revision, created_at,
  updated_at
from channel_connection
where $1::timestamptz is null or (created_at, id) < ($1, $2::uuid)
order by created_at desc, id desc
limit $3


-- name: lock
select id, channel_type, name, config, sealed, disabled_at, plane_now() as now from channel_connection where id = $1
for no key update


-- name: mappings
select id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, created_at
from channel_mapping
where ($1::timestamptz is null or (created_at, id) < ($1, $2::uuid)) and user_account_id = $4 and removed_at is null
order by created_at desc, id desc
limit $3


-- name: named
-- By its id or its name. A name is given once for each kind of channel: a webhook comes first.
select id, channel_type, name, config, sealed, disabled_at, plane_now() as now
from channel_connection where name = $1 or id::text = lower($1)
order by channel_type = 'webhook' desc, id::text = lower($1) desc
limit 1


-- name: reseal
update channel_connection set sealed = $2, revision = revision + 1, updated_at = plane_now() where id = $1


-- name: sealed
select id, channel_type, name, config, sealed, disabled_at, plane_now() as now from channel_connection where id = $1


-- name: update
update channel_connection
set name = coalesce($2, name),
    config = case when $5::text is null then config else config || jsonb_build_object('url', $5) end,
    disabled_at = case
      when $3::boolean is null then disabled_at
      when $3 then null
      else coalesce(disabled_at, plane_now())
    end,
    -- Whoever enables it wants it tried anew, from the first failure on.
    disabled_reason = case when $3 then null else disabled_reason end,
    failing_since = case when $3 then null else failing_since end,
    revision = revision + 1, updated_at = plane_now()
where id = $1 and ($4::integer is null or revision = $4)
returning id, channel_type, name, config ->> 'url' as url, failing_since, disabled_at, disabled_reason, revision, created_at,
  updated_at


-- name: verified_mapping
select org_id, id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, created_at,
  verified_at is not null as verified, mac
from channel_mapping where connection_id = $1 and channel_user_id = $2 and verified_at is not null
