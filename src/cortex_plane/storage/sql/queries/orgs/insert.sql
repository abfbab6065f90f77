with made as (
  insert into org (id, slug, name, settings, policy_mac) values ($1, $2, $3, $4, $5)
  returning id, slug, name, settings, revision, created_at, updated_at
), head as (
  insert into org_head (org_id) values ($1)
)
select * from made
