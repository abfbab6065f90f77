-- name: delete
delete from team where id = $1 returning id


-- name: find
-- The ids of several teams, each named by id or slug.
select id, slug from team where id = any ($1::uuid[]) or slug = any ($2::text[])


-- name: get
select id, slug, name, parent_id, revision, created_at, updated_at from team where id = $1 or slug = $2


-- name: insert
insert into team (org_id, id, slug, name, parent_id) values ($1, $2, $3, $4, $5)
returning id, slug, name, parent_id, revision, created_at, updated_at


-- name: list_page
select id, slug, name, parent_id, revision, created_at, updated_at from team
where $1::timestamptz is null or (created_at, id) < ($1, $2::uuid)
order by created_at desc, id desc
limit $3


-- name: update
update team set name = $3, revision = revision + 1, updated_at = plane_now()
where id = $1 and ($2::integer is null or revision = $2)
returning id, slug, name, parent_id, revision, created_at, updated_at


-- name: usage
select (select count(*) from agent where team_id = $1) as agents,
  (select count(*) from team where parent_id = $1) as teams
