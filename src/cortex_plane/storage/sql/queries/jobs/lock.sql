select j.session_id, j.status from job j
where j.id = $1 and ($2::uuid is null or exists (
  select from session s where s.org_id = j.org_id and s.id = j.session_id and s.user_account_id = $2))
for no key update of j
