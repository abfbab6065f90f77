-- name: next_level
select escalations -> escalation_level from approval_request where id = $1 and status = 'pending'


-- name: of_approvals
select r.id as approval_id, d.from_member as handed_by, coalesce(d.automatic, false) as out_of_office,
  exists (select from approval_vote v
    where v.org_id = r.org_id and v.approval_id = r.id and v.version = r.version and v.user_account_id = $2) as voted,
  $3::boolean and exists (select from notification n
    where n.org_id = r.org_id and n.approval_id = r.id and n.status = 'dead') as undelivered
from approval_request r
left join lateral (
  select from_member, automatic from approval_delegation g
  where g.org_id = r.org_id and g.approval_id = r.id and g.to_member_id = $2
  order by g.id desc limit 1) d on true
where r.id = any ($1::uuid[])
