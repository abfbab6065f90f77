-- Who could decide under these terms: active members of the approver set with the clearance. $1 owner, $2 whether the
-- owner is asked, $3 roles, $4 members, $5 clearance, $6 whoever must not decide it,
-- $7 limit; null: all of them.
select u.id, u.display_name, u.roles from user_account u
where u.deactivated_at is null and u.clearance >= $5 and u.roles <> '{guest}'
  and not u.id = any ($6::uuid[])
  and (($2 and $1::uuid is not null and u.id = $1)
    or ($2 and $1::uuid is null and u.roles && array['admin', 'approver'])
    or u.roles && $3::text[] or u.id = any ($4::uuid[]))
order by u.display_name
limit $7
