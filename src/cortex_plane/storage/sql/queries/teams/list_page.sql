select id, slug, name, parent_id, revision, created_at, updated_at from team
where $1::timestamptz is null or (created_at, id) < ($1, $2::uuid)
order by created_at desc, id desc
limit $3
