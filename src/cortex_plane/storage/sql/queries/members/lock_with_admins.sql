-- The member and every active admin, held still in one order: an org must keep an admin, whoever changes whom.
select id, revision, roles, clearance, 'admin' = any (roles) and deactivated_at is null as is_admin from user_account
where id = $1 or (roles <> '{guest}' and 'admin' = any (roles) and deactivated_at is null)
order by id
for no key update
