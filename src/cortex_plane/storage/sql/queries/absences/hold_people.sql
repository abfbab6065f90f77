-- Whoever is absent and whoever stands in, held as they are while it is written; in one order, as members are locked.
select id, display_name, roles, deactivated_at, plane_now() as now from user_account
where id = any ($1::uuid[])
order by id
for share
