-- The org stands still while its rows are replaced.
select policy_version from org where id = $1 for no key update
