-- Active admins besides this one: an org must keep at least one. Locked, so that two admins cannot remove each other.
select count(*) from (
  select from user_account
  where id <> $1 and 'admin' = any (roles) and deactivated_at is null
  for no key update
) as others
