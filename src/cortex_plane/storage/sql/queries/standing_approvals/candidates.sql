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
