with made as (
  insert into org (id, slug, name, settings) values ($1, $2, $3, $4)
  returning id, slug, name, settings, revision, created_at, updated_at
), head as (
  insert into org_head (org_id) values ($1)
)
select * from made
