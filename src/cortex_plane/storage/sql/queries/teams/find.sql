-- The ids of several teams, each named by id or slug.
select id, slug from team where id = any ($1::uuid[]) or slug = any ($2::text[])
