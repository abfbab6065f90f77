-- The absences that somebody's delegate leads to within a span, hop by hop.
with recursive reached as (
  select a.org_id, a.id, a.user_account_id as member_id, a.delegate_id, a.starts_at, a.ends_at
  from member_absence a
  where a.user_account_id = $1 and a.cancelled_at is null and a.starts_at < $3 and a.ends_at > $2
  union
  select a.org_id, a.id, a.user_account_id, a.delegate_id, a.starts_at, a.ends_at
  from reached r
  join member_absence a on a.org_id = r.org_id and a.user_account_id = r.delegate_id and a.cancelled_at is null
    and a.starts_at < least(r.ends_at, $3) and a.ends_at > greatest(r.starts_at, $2)
)
select member_id, delegate_id, starts_at, ends_at from reached
