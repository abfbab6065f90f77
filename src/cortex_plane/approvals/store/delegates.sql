-- name: list_some
select u.id, u.display_name from user_account u
where u.deactivated_at is null and u.roles <> '{guest}'
  and ($1::uuid is null or u.id <> $1) and ($2::text is null or u.display_name = $2)
order by u.display_name, u.id
limit $3


-- name: of_approval
-- Who could take somebody's part in a request: those who would then be refused neither for their clearance, nor for having
-- asked for it, or for being perhaps the same human as somebody who did, nor because they have voted or handed their own part on.
select u.id, u.display_name
from approval_request r join user_account u on u.org_id = r.org_id
where r.id = $1 and u.id <> $2 and ($3::text is null or u.display_name = $3)
  and u.deactivated_at is null and u.roles <> '{guest}' and u.clearance >= r.required_clearance
  and not u.id = any (r.delegated) and (r.self_approval or not u.id = any (r.causes) and tied_cause(r.org_id, r.id, u.id, null) is null)
  and not exists (
    select from approval_vote v
    where v.org_id = r.org_id and v.approval_id = r.id and v.version = r.version and v.user_account_id = u.id)
order by u.display_name, u.id
limit $4
