-- What waits: what this person could decide apart from the rest that they see, each the most urgent first; an uncertain
-- effect has no deadline and is the most urgent of all. $1 the person, $2 their roles, $3 their clearance, $4 whether they
-- answer for uncertain effects, $5 whom they see (null: everybody), $6 what came later is only counted, $7 how many are
-- passed over, $8 limit. The rules are those of deciding.refusal; a test compares the two.
with waiting as (
  select r.id, r.requested_at, w.mine, $6::timestamptz is null or r.requested_at <= $6 as known,
    row_number() over (
      partition by w.mine, $6::timestamptz is null or r.requested_at <= $6
      order by r.deadline nulls first, r.requested_at, r.id) as place
  from approval_request r
  join session s on s.org_id = r.org_id and s.id = r.session_id
  cross join lateral (
    select case when r.kind = 'uncertain_effect' and r.settles is null then $4::boolean
      else $1::uuid is not null and r.required_clearance <= $3::integer
        and (r.self_approval or not $1 = any (r.causes)) and not $1 = any (r.delegated)
        and (r.approvers -> 'roles' ?| $2::text[] or r.approvers -> 'members' ? $1::text
          or r.approvers @> '{"owner": true}'
            and (r.owner_id = $1 or r.owner_id is null and $2 && array['admin', 'approver']))
      end is true as mine) w
  where r.status = 'pending'
    and (w.mine or $5::uuid is null or $5 in (s.user_account_id, s.opened_by) or r.approvers -> 'members' ? $5::text
      or r.approvers -> 'roles' ?| $2))
, totals as (
  select count(*) filter (where known and mine) as mine_total, count(*) filter (where known and not mine) as others_total,
    count(*) filter (where not known) as arrived, max(requested_at) as latest
  from waiting)
, listed as (
  select * from waiting where known and place > $7::bigint and place <= $7::bigint + $8::bigint)
select t.mine_total, t.others_total, t.arrived, t.latest, l.mine, a.id, a.kind, a.status, a.version, a.session_id, a.job_id, a.agent_id, a.agent, a.agent_name, a.step_index,
  a.action_type, a.tool_name, a.tool_digest, a.target, null as original_arguments, a.input_hash, a.invocations, a.risk,
  a.action_summary, null as agent_says, left(a.asked_for, 200) as asked_for, left(a.question, 200) as question, a.rule,
  a.policy_version, a.template, a.required_clearance, a.approvers, a.on_deny, a.self_approval, a.owner_id, a.caused_by, a.causes,
  a.escalation_level, a.channels_dispatched, a.requested_at, a.deadline, a.reminded_at, a.resolved_at, a.resolved_by,
  a.resolved_by_name, a.resolution_reason, a.resolved_via, a.created_at, a.quorum, a.votes_for, a.delegated, a.standing,
  a.action, null as details, a.settles, a.escalations, a.escalate_at,
  case when large.it then null else a.arguments end as arguments,
  case when large.it then left(a.arguments::text, 2000) end as excerpt
from totals t
left join (listed l join approval_shown a on a.id = l.id) on true
left join lateral (select octet_length(a.arguments::text) > 2000 as it) large on true
order by l.mine desc, l.place
