-- name: get
select id, slug, name, settings, revision, created_at, updated_at from org


-- name: insert
with made as (
  insert into org (id, slug, name, settings, policy_mac) values ($1, $2, $3, $4, $5)
  returning id, slug, name, settings, revision, created_at, updated_at
), head as (
  insert into org_head (org_id) values ($1)
)
select * from made


-- name: update
update org
set name = coalesce($2, name), settings = settings || coalesce($3::jsonb, '{}'), revision = revision + 1,
    updated_at = plane_now()
where $1::integer is null or revision = $1
returning id, slug, name, settings, revision, created_at, updated_at
