-- name: candidates
-- Those that may cover a call: by which it was counted before comes first, then what costs no count, then what ends soonest.
-- Each with the receipt of the request that it was given with, for the worker to verify.
select s.*, u.revision as granter_revision, plane_now() as now, voters_of(s.org_id, s.granted_by_id, null, s.created_at) as behind,
  exists (select from standing_use x where x.org_id = s.org_id and x.standing_id = s.id and x.call_id = $5) as counted,
  r.body, r.signature, k.id as key_id, k.public_key, k.sealed
from standing_shown s join user_account u on u.org_id = s.org_id and u.id = s.granted_by_id
left join approval_receipt r on r.org_id = s.org_id and r.approval_id = s.approval_id
left join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where s.session_id = $1 and s.tool_name = $2 and s.tool_digest = $3 and s.revoked_at is null
  and s.expires_at > (select plane_now()) and coalesce(s.input_hash, $4) = $4
  -- From the second repetition on it needs a new yes, not the one that it was counted by.
  and not (call_repeats(s.org_id, $5) > $6 and exists (
    select from standing_use x where x.org_id = s.org_id and x.standing_id = s.id and x.call_id = $5))
order by counted desc, s.max_calls is not null, s.expires_at, s.id


-- name: get
-- Whoever is not staff sees those of their own sessions, and those that they gave.
select *, plane_now() as now from standing_shown s
where s.id = $1 and ($2::uuid is null or $2 in (s.owner_id, s.opened_by, s.granted_by_id))


-- name: insert
insert into standing_approval (org_id, id, session_id, agent_id, tool_name, tool_digest, input_hash, condition, max_calls,
  expires_at, granted_by, granted_by_id, approval_id, required, reason, created_at)
select r.org_id, $2, r.session_id, r.agent_id, r.tool_name, r.tool_digest, $4, $5, $6, $7, $8, $9, r.id,
  jsonb_build_object('rule', r.rule, 'template', r.template, 'clearance', r.required_clearance, 'approvers', r.approvers,
    'version', $11::integer),
  $10, $12
from approval_request r
where r.org_id = $1 and r.id = $3


-- name: list_page
-- Whoever is not staff sees those of their own sessions, and those that they gave.
select *, plane_now() as now from standing_shown s
where ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
  and ($4::uuid is null or $4 in (s.owner_id, s.opened_by, s.granted_by_id))
  and ($5::uuid is null or s.session_id = $5)
  and (not $6::boolean or s.revoked_at is null and s.expires_at > (select plane_now())
    and (s.max_calls is null or s.used_calls < s.max_calls))
order by s.created_at desc, s.id desc
limit $3


-- name: origin
-- Whose session a job belongs to, who shaped what it asks for, with those who ask now, and who could be the same human as those.
select c.causes, array(select sponsors_of(j.org_id, c.causes, 'infinity')) as sponsors, s.user_account_id as owner_id
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
cross join lateral call_causes(j.org_id, j.id, $2, $3::uuid[]) c
where j.id = $1


-- name: revoke
update standing_approval set revoked_at = plane_now(), revoked_by = $2, revocation_reason = $3
where id = $1 and revoked_at is null
returning session_id
