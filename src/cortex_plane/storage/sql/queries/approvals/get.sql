-- Whoever is not staff sees those of their own sessions, and those that name them or a role of theirs.
select *, plane_now() as now,
  (select coalesce(max(call_repeats(a.org_id, i.call_id)), 0) from approval_invocation i
    where i.org_id = a.org_id and i.approval_id = a.id) as repeats,
  program_changes(a.org_id, a.id) as programs
from approval_shown a
where a.id = $1 and ($2::uuid is null or $2 in (a.user_account_id, a.opened_by) or a.approvers -> 'members' ? $2::text
  or a.approvers -> 'roles' ?| (select u.roles from user_account u where u.id = $2))
