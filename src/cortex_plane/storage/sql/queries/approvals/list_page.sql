-- Whoever is not staff sees those of their own sessions, and those that name them or a role of theirs.
select * from approval_shown a
where ($1::timestamptz is null or (a.created_at, a.id) < ($1, $2::uuid))
  and ($4::uuid is null or $4 in (a.user_account_id, a.opened_by) or a.approvers -> 'members' ? $4::text
    or a.approvers -> 'roles' ?| (select u.roles from user_account u where u.id = $4))
  and ($5::text is null or a.status = $5)
  and ($6::uuid is null or a.job_id = $6)
  and ($7::uuid is null or a.session_id = $7)
order by a.created_at desc, a.id desc
limit $3
