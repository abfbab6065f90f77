-- name: answer_question
with answered as (
  update approval_request
  set status = $2, resolved_at = plane_now(), resolved_by = $3, resolved_by_name = $4, resolution_reason = $5,
    resolved_via = $6
  where id = $1 and status = 'pending' and kind = 'uncertain_effect'
  returning org_id, id)
insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, payload, created_at)
select org_id, id, 'answered', $6, $3, $4, jsonb_build_object('verdict', $7::text, 'note', $5::text), plane_now() from answered
returning approval_id


-- name: approval_changes
-- Entries of the trail that the snapshot $1 did not see and $2 does, after a place, in an order that stays. Of very many it looks at the
-- first $6; the last one of these is returned too, without an approval, as the place to go on from.
with looked as materialized (
  select e.xid, e.chain_id, e.seq, e.action, e.body, e.created_at
  from audit_entry e
  where e.xid >= greatest(pg_snapshot_xmin($1::text::pg_snapshot), $3::text::xid8) and e.xid < pg_snapshot_xmax($2::text::pg_snapshot)
    and (e.xid, e.chain_id, e.seq) > ($3::text::xid8, $4::text::uuid, $5::bigint)
    and not pg_visible_in_snapshot(e.xid, $1::text::pg_snapshot) and pg_visible_in_snapshot(e.xid, $2::text::pg_snapshot)
  order by e.xid, e.chain_id, e.seq limit $6),
changes as (
  select l.xid, l.chain_id, l.seq, l.action, l.created_at, id_in(entry_body(l.body) #>> '{data,approval}') as approval_id
  from looked l
  where l.action in ('approval_requested', 'approval_joined', 'approval_edited', 'approval_vote', 'approval_decision',
    'approval_delegated', 'approval_reminded', 'approval_escalated', 'approval_expired', 'approval_cancelled', 'effect_settled')
  order by l.xid, l.chain_id, l.seq limit $7),
places as (
  select c.*, 0 as rank from changes c
  union all
  select l.xid, l.chain_id, l.seq, l.action, l.created_at, null, 1
  from (select * from looked order by xid desc, chain_id desc, seq desc limit 1) l
  where (select count(*) from looked) = $6 and (select count(*) from changes) < $7)
select p.xid::text as xid, p.chain_id, p.seq, p.action, readable_time(p.created_at) as created_at, p.approval_id from places p
order by p.xid, p.chain_id, p.seq, p.rank


-- name: approval_context
-- What gates and policies look at besides the call itself, and what its tool declared when the call was asked for.
select a.slug as agent, array_remove(array[t.id, t.parent_id], null) as teams, s.kind as session_kind,
  array(
    select distinct coalesce(k.policies, '[]') from approval_invocation i
    join job k on k.org_id = i.org_id and k.id = i.job_id
    where i.org_id = r.org_id and i.approval_id = r.id) as request_policies,
  coalesce(v.parameters, x.parameters) as parameters,
  coalesce(v.declares_risk, (
    select e.declares_risk from approval_invocation i join external_call e on e.org_id = i.org_id and e.call_id = i.call_id
    where i.org_id = r.org_id and i.approval_id = r.id limit 1), false) as declares_risk,
  coalesce(v.read_only, false) and not coalesce(w.skill_config -> 'side_effect_tools' ? r.tool_name, false) as read_only
from approval_request r
join job j on j.org_id = r.org_id and j.id = r.job_id
join agent a on a.org_id = r.org_id and a.id = r.agent_id
join team t on t.org_id = a.org_id and t.id = a.team_id
join session s on s.org_id = r.org_id and s.id = r.session_id
join agent_version w on w.org_id = j.org_id and w.agent_id = j.agent_id and w.version = j.agent_version
left join known_tool v on v.app = j.app and v.name = r.tool_name and v.digest = r.tool_digest
left join external_tool x on j.kind = 'external' and x.org_id = r.org_id and x.name = r.tool_name and x.digest = r.tool_digest
where r.id = $1


-- name: approval_of_call
-- The newest request that this call belongs to.
select i.approval_id from approval_invocation i where i.call_id = $1 order by i.created_at desc limit 1


-- name: approval_of_uncertain_call
-- The open card of an uncertain call.
select r.id from approval_request r
where r.job_id = $1 and r.kind = 'uncertain_effect' and r.status = 'pending'
  and exists (select from approval_invocation i where i.org_id = r.org_id and i.approval_id = r.id and i.call_id = $2)
for no key update of r


-- name: approvals_by_id
select approval_record(a.org_id, a.id, $3) as approval
from approval_request a left join session s on s.org_id = a.org_id and s.id = a.session_id
where a.id = any ($1::uuid[]) and sees_approval($2, (select u.roles from user_account u where u.id = $2), s.user_account_id,
  case when a.kind = 'change' then a.caused_by else s.opened_by end, a.approvers)


-- name: call_origin
-- Whose session a job belongs to, and who shaped what it asks for, with those who ask now.
select j.caused_by, c.causes, c.caused, s.user_account_id as owner_id,
  (select u.roles = '{guest}' from user_account u where u.org_id = s.org_id and u.id = s.user_account_id) as is_guests
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
cross join lateral call_causes(j.org_id, j.id, $2, $3::uuid[]) c
where j.id = $1


-- name: cancel_approvals
select * from cancel_approvals($1, $2, $3)


-- name: cancel_changes
select cancel_changes($1, $2, $3, $4, $5, $6) as id


-- name: change_approval
select change_approval($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
  $26)


-- name: count_repeats
select call_repeats($1, $2)


-- name: current_secret
select id, sealed from signing_secret where purpose = $1 and retire_at is null


-- name: current_snapshot
-- With whether the snapshot of a cursor is of another life of the database.
select pg_current_snapshot()::text as snapshot,
  coalesce(pg_snapshot_xmax($1::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot()), false) as is_foreign


-- name: deciders_of_approval
-- By name; $3 limit, null: all of them. Those who count as one human with a cause are among them: they may prove a channel of their own.
select u.id, u.display_name, u.roles
from approval_request r join user_account u on u.org_id = r.org_id and u.deactivated_at is null and u.roles <> '{guest}'
where r.org_id = $1 and r.id = $2 and decider_refusal(r, u.id, u.roles, u.clearance, null, null, null) is null
order by u.display_name
limit $3


-- name: delegates_of_approval
-- Who could take somebody's part in a request, and has not voted.
select u.id, u.display_name
from approval_request r join user_account u on u.org_id = r.org_id
where r.id = $1 and u.id <> $2 and ($3::text is null or u.display_name = $3) and u.deactivated_at is null and taker_refusal(r, u) is null
  and not exists (
    select from approval_vote v
    where v.org_id = r.org_id and v.approval_id = r.id and v.version = r.version and v.user_account_id = u.id)
order by u.display_name, u.id
limit $4


-- name: delegates_in_words
-- Who could take somebody's part in a request, among those with whose name the words begin. The longest name comes first.
select u.id, u.display_name
from approval_request r join user_account u on u.org_id = r.org_id
where r.id = $1 and u.id <> $2 and starts_with(lower($3) || ' ', lower(u.display_name) || ' ') and u.deactivated_at is null
  and taker_refusal(r, u) is null
  and not exists (
    select from approval_vote v
    where v.org_id = r.org_id and v.approval_id = r.id and v.version = r.version and v.user_account_id = u.id)
order by length(u.display_name) desc, u.id
limit $4


-- name: escalate_approval
select escalate_approval($1, $2, $3)


-- name: find_change
-- The same change of the same version that waits already. `is_same` is false if names in its file stand for others by now, or others
-- approve it.
select r.id as approval_id, r.deadline,
  r.approvers = $5 and r.arguments ->> 'rows_digest' is not distinct from $6::text as is_same
from approval_request r join rule_change c on c.org_id = r.org_id and c.approval_id = r.id
where r.kind = 'change' and r.status = 'pending' and r.tool_name = $1 and r.target = $2 and c.digest = $3
  and c.base is not distinct from $4::text and r.deadline > (select plane_now())
order by is_same desc limit 1


-- name: find_joinable
-- The same call under the same terms that somebody is being asked about already, unless its time is over.
select id, causes from approval_request
where session_id = $1 and tool_name = $2 and input_hash = $3 and terms_hash = $4 and status = 'pending' and kind = 'call'
  and deadline > plane_now()
for no key update


-- name: find_taker
-- The person who is to take a part of a request over, and why they may not.
select u.id, u.display_name as name, u.clearance, u.roles, u.deactivated_at is null as active, taker_refusal(r, u) as refusal,
  tied_cause(r, u.id, voters_of(r.org_id, u.id, null, 'infinity')) as same_human_as
from approval_request r join user_account u on u.org_id = r.org_id
where r.id = $1 and u.id = $2


-- name: find_twin
-- Another request that waits for a decision about exactly these arguments, on the same terms.
select r.id from approval_request r join approval_request m on m.id = $1
where r.session_id = m.session_id and r.tool_name = m.tool_name and r.input_hash = $2 and r.terms_hash = m.terms_hash
  and r.status = 'pending' and r.kind = 'call' and r.id <> m.id


-- name: forget_secrets
delete from signing_secret where purpose = $1 and retire_at <= (select plane_now()) + $2::interval


-- name: forget_tokens
delete from approval_token where expires_at <= (select plane_now()) - $1::interval


-- name: get_approval
select approval_record(a.org_id, a.id, $3) as approval, plane_now() as now
from approval_request a left join session s on s.org_id = a.org_id and s.id = a.session_id
where a.id = $1 and sees_approval($2, (select u.roles from user_account u where u.id = $2), s.user_account_id,
  case when a.kind = 'change' then a.caused_by else s.opened_by end, a.approvers)


-- name: get_change
select source, name, digest, base, note, proposed_by, proposed_by_id from rule_change where approval_id = $1


-- name: get_standing
-- Whoever is not staff sees those of their own sessions, and those that they gave.
select s.*, standing_granter(s) as granter, plane_now() as now from standing_shown s
where s.id = $1 and ($2::uuid is null or $2 in (s.owner_id, s.opened_by, s.granted_by_id))


-- name: insert_approval
-- What asks whether a call happened asks those who let it be sent: by the request of that call, or by the one with which a standing
-- approval was given; whoever shaped the call of that one did not shape this one.
with settled as (
  select r.id, r.required_clearance, r.approvers, r.self_approval, r.quorum,
    case when a.own then r.causes else '{}' end as causes, case when a.own then r.caused else '[]' end as caused
  from (
    select i.approval_id, true from approval_invocation i where i.call_id = $34
    union all
    select s.approval_id, false from standing_use u join standing_approval s on s.org_id = u.org_id and s.id = u.standing_id
    where u.call_id = $34) a (id, own)
  join approval_request r on r.org_id = $1 and r.id = a.id
  where $3::text = 'uncertain_effect' and r.kind = 'call' and r.status = 'approved'
  order by a.own desc, r.resolved_at desc limit 1)
, asked as (
  insert into approval_request (org_id, id, kind, session_id, job_id, agent_id, step_index, action_type, tool_name,
    tool_digest, target, arguments, input_hash, risk, action_summary, agent_says, asked_for, question, rule,
    policy_version, template, required_clearance, timeout_seconds, approvers, on_deny, self_approval, owner_id, caused_by,
    causes, terms_hash, requested_at, deadline, remind_at, next_action_at, quorum, escalations, escalate_at, channels, standing,
    action, details, caused, settles, rule_reason, gate_answers)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13, $14, $15, $16, $17, $18, $19, $20, $21,
    coalesce((select s.required_clearance from settled s), $22), $23, coalesce((select s.approvers from settled s), $24), $25,
    coalesce((select s.self_approval from settled s), $26), $27, $28,
    array(select unnest($29::uuid[]) union select unnest(s.causes) from settled s), $30, $31::timestamptz, $32::timestamptz, $33::timestamptz,
    least($32::timestamptz, $33::timestamptz, ($37::timestamptz[])[1]),
    coalesce((select s.quorum from settled s), $35), $36, $37::timestamptz[], $38::text[], $39, $40,
    $41, merge_caused($42, coalesce((select s.caused from settled s), '[]')), (select s.id from settled s), $43, $44)
  returning org_id, id, requested_at)
, told as (
  insert into approval_event (org_id, approval_id, event_type, channel, payload, created_at)
  select org_id, id, kind, channel, '{}', requested_at
  from asked, (values ('requested', null), ('dispatched', 'dashboard')) v (kind, channel))
insert into approval_invocation (org_id, approval_id, call_id, job_id) values ($1, $2, $34, $5)


-- name: insert_change
with asked as (
  insert into approval_request (org_id, id, kind, step_index, action_type, tool_name, target, arguments, input_hash, risk,
    action_summary, question, rule, policy_version, template, required_clearance, timeout_seconds, approvers, on_deny, self_approval,
    caused_by, causes, caused, terms_hash, requested_at, deadline, remind_at, next_action_at)
  select $1, $2, 'change', 0, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, $11, policies_version($1), $12, $13, $14::integer, $15, 'continue',
    false, $16, $17, $18, $7, t.at, t.at + make_interval(secs => $14::integer), t.at + make_interval(secs => $14::integer - $19::integer),
    t.at + make_interval(secs => $14::integer - $19::integer)
  from (select plane_now() as at) t
  returning org_id, id, requested_at, deadline)
, told as (
  insert into approval_event (org_id, approval_id, event_type, channel, payload, created_at)
  select org_id, id, kind, channel, '{}', requested_at
  from asked, (values ('requested', null), ('dispatched', 'dashboard')) v (kind, channel))
, kept as (
  insert into rule_change (org_id, approval_id, source, name, digest, base, note, proposed_by, proposed_by_id)
  select org_id, id, $20, $21, $22, $23, $24, $25, $26 from asked)
select deadline from asked


-- name: insert_delegation
select delegate_approval($1, $2, $3, $4, $5, $6, $7, $8, false)


-- name: insert_secret
-- Of two that come at the same instant one waits for the other, and then does nothing.
insert into signing_secret (org_id, id, purpose, sealed) values ($1, $2, $3, $4)
on conflict (org_id, purpose) where retire_at is null do nothing
returning created_at


-- name: insert_standing
insert into standing_approval (org_id, id, session_id, agent_id, tool_name, tool_digest, input_hash, condition, max_calls,
  expires_at, granted_by, granted_by_id, approval_id, required, reason, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)


-- name: insert_tokens
insert into approval_token (org_id, id, approval_id, user_account_id, notification_id, token_hash, version, input_hash,
  expires_at, mac)
select $1, t.id, t.approval, t.member, t.notification, t.hash, t.version, decode(t.input_hash, 'hex'), t.expires_at, t.mac
from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::bytea[], $7::integer[], $8::text[], $9::timestamptz[], $10::bytea[])
  t (id, approval, member, notification, hash, version, input_hash, expires_at, mac)


-- name: is_key_used
select exists (select from approval_event where approval_id = $1 and idempotency_key = $2)


-- name: is_unasked
-- Whether people let this call be sent, nobody knows whether it happened, and nobody is asked: its agent was to find out.
select exists (
  select from tool_call c
  where c.job_id = $1 and c.id = $2 and c.status = 'uncertain'
    and (exists (
        select from approval_invocation i join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
        where i.org_id = c.org_id and i.call_id = c.id and r.kind = 'call' and r.status = 'approved')
      or exists (select from standing_use u where u.org_id = c.org_id and u.call_id = c.id))
    and not exists (
      select from approval_invocation i join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
      where i.org_id = c.org_id and i.call_id = c.id and r.kind = 'uncertain_effect' and r.status = 'pending'))


-- name: join_approval
-- One call more: the card changes, so whoever saw the old one must look again. Whoever shaped either call shaped both.
with joined as (
  update approval_request r set invocations = r.invocations + 1, version = r.version + 1,
    causes = array(select unnest(r.causes) union select unnest($5::uuid[])), caused = merge_caused(r.caused, $6)
  where id = $2 returning org_id, id, version)
, told as (
  insert into approval_event (org_id, approval_id, event_type, payload, created_at)
  select org_id, id, 'joined', jsonb_build_object('call', $3::uuid, 'version', version), plane_now() from joined)
insert into approval_invocation (org_id, approval_id, call_id, job_id) values ($1, $2, $3, $4)


-- name: list_approval_events
-- The newest hundred: whoever tries in vain again and again must not make a card that nobody can load.
select * from (
  select id, event_type, channel, actor_member_id, actor, payload, times, created_at
  from approval_event where approval_id = $1 order by id desc limit 100) e
order by id


-- name: list_approvals
-- The page is found in the table itself, in the order of its index, and then looked up row by row: of the view the planner expects too
-- few rows and would sort them all, of a page too many and would read whole tables.
with page as materialized (
  select r.org_id, r.id from approval_request r
  where (r.requested_at, r.id) < (coalesce($1::timestamptz, 'infinity'), coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
    and ($4::uuid is null or (
      select sees_approval($4, (select u.roles from user_account u where u.id = $4), s.user_account_id,
        case when r.kind = 'change' then r.caused_by else s.opened_by end, r.approvers)
      from (values (1)) one left join session s on s.org_id = r.org_id and s.id = r.session_id))
    and ($5::text is null or r.status = $5)
    and ($6::uuid is null or r.job_id = $6)
    and ($7::uuid is null or r.session_id = $7)
  order by r.requested_at desc, r.id desc
  limit $3)
select a.*, d.refusal, d.shaped_by as same_human_as
from page p
cross join lateral (select * from approval_shown w where w.org_id = p.org_id and w.id = p.id limit 1) a
left join lateral approval_refusal(a.org_id, a.id, $8) d on a.status = 'pending'
order by a.created_at desc, a.id desc


-- name: list_deciders
-- Who could decide under these terms ($1, columns of approval_request), and who could had they not shaped the call.
with request as materialized (select jsonb_populate_record(null::approval_request, $1::jsonb) as r)
select u.id, u.display_name, u.roles, d.refusal
from request q
join user_account u on u.deactivated_at is null and u.roles <> '{guest}'
cross join lateral (select decider_refusal(q.r, u.id, u.roles, u.clearance, null, null, null) as refusal) d
where d.refusal is null or d.refusal = 'self_approval'
order by u.display_name


-- name: uses_channel
select uses_channel($1, $2)


-- name: team_approvers
-- The team before its parent.
with teams as (
  select t.id, t.parent_id
  from agent a join team t on t.org_id = a.org_id and t.id = a.team_id
  where a.id = $1),
approvers as (
  select u.id, m.team_id <> t.id as is_above
  from teams t
  join team_member m on m.team_id in (t.id, t.parent_id)
  join user_account u on u.id = m.user_account_id
  where 'approver' = any (u.roles) and u.deactivated_at is null)
select distinct a.id from approvers a where a.is_above = (select bool_and(b.is_above) from approvers b) order by a.id


-- name: list_delegates
select u.id, u.display_name from user_account u
where u.deactivated_at is null and u.roles <> '{guest}'
  and ($1::uuid is null or u.id <> $1) and ($2::text is null or u.display_name = $2)
order by u.display_name, u.id
limit $3


-- name: list_delegations
select from_member_id, from_member, to_member_id, to_member, to_clearance, reason, automatic, created_at as at
from approval_delegation where approval_id = $1 order by id


-- name: list_granters
-- Those who gave the standing approvals $1, and why each could not approve a call of job $2 under the terms $5 (see list_deciders).
with origin as materialized (
  select c.causes, array(select sponsors_of(j.org_id, c.causes, 'infinity')) as sponsors, s.user_account_id as owner_id
  from job j join session s on s.org_id = j.org_id and s.id = j.session_id
  cross join lateral call_causes(j.org_id, j.id, $3, $4::uuid[]) c
  where j.id = $2)
select s.id, standing_granter(s.org_id, s.granted_by_id,
  $5::jsonb || jsonb_build_object('owner_id', o.owner_id, 'causes', o.causes), o.causes || o.sponsors, s.created_at) as granter
from origin o cross join standing_approval s
where s.id = any ($1::uuid[])


-- name: list_inbox
-- What waits: what this person could decide apart from the rest that they see, each the most urgent first; an uncertain
-- effect has no deadline and is the most urgent of all. However much is pending, one look reads the 500 most urgent requests in the
-- order of an index, or the 500 after $10, where an earlier look ended. Whether somebody counts as one human with a cause is looked at
-- for what is listed alone. $1 the person, $2 their roles, $3 their clearance, $4 whether they
-- answer for uncertain effects, $5 whom they see (null: everybody), $6 what came later is only counted, $7 how many are
-- passed over, $8 limit.
with look as materialized (
  select r.id, r.requested_at, decider_refusal(r, $1, $2, $3, $4, null, null) is null as mine,
    $5::uuid is null or (
      select sees_approval($5, $2, s.user_account_id, case when r.kind = 'change' then r.caused_by else s.opened_by end, r.approvers)
      from (values (1)) one left join session s on s.org_id = r.org_id and s.id = r.session_id) as seen,
    row_number() over (order by case when r.deadline is null then '-infinity' else r.deadline end, r.requested_at, r.id) as rank
  from approval_request r
  where r.status = 'pending' and r.requested_at > '-infinity' -- the condition of the index
    and (case when r.deadline is null then '-infinity' else r.deadline end, r.requested_at, r.id) > (
      select coalesce(e.deadline, '-infinity'), coalesce(e.requested_at, '-infinity'), coalesce(e.id, '00000000-0000-0000-0000-000000000000')
      from (values (1)) start left join approval_request e on e.id = $10::uuid)
  order by case when r.deadline is null then '-infinity' else r.deadline end, r.requested_at, r.id
  limit 501)
, waiting as (
  select l.id, l.requested_at, l.mine, k.known, row_number() over (partition by l.mine, k.known order by l.rank) as place
  from look l cross join lateral (select $6::timestamptz is null or l.requested_at <= $6 as known) k
  where l.rank <= 500 and (l.mine or l.seen))
, totals as (
  select count(*) filter (where known and mine) as mine_total, count(*) filter (where known and not mine) as others_total,
    count(*) filter (where not known) as arrived, max(requested_at) as latest,
    (select l.id from look l where l.rank = 500 and (select count(*) from look) > 500) as further
  from waiting)
, listed as (
  select * from waiting where known and place > $7::bigint and place <= $7::bigint + $8::bigint)
select t.mine_total, t.others_total, t.arrived, t.latest, t.further, l.mine, a.id, a.kind, a.status, a.version, a.session_id, a.job_id, a.agent_id, a.agent, a.agent_name, a.step_index,
  a.action_type, a.tool_name, a.tool_digest, a.target, null as original_arguments, a.input_hash, a.invocations, a.risk,
  a.action_summary, null as agent_says, left(a.asked_for, 200) as asked_for, left(a.question, 200) as question, a.rule,
  a.policy_version, a.template, a.required_clearance, a.approvers, a.on_deny, a.self_approval, a.owner_id, a.caused_by, a.causes,
  a.escalation_level, a.channels_dispatched, a.requested_at, a.deadline, a.reminded_at, a.resolved_at, a.resolved_by,
  a.resolved_by_name, a.resolution_reason, a.resolved_via, a.created_at, a.quorum, a.votes_for, a.delegated, a.standing,
  a.action, null as details, a.settles, a.escalations, a.escalate_at, d.refusal, d.shaped_by as same_human_as,
  case when large.it then null else a.arguments end as arguments,
  case when large.it then left(a.arguments::text, 2000) end as excerpt
from totals t
left join (listed l join approval_shown a on a.id = l.id) on true
left join lateral approval_refusal(a.org_id, a.id, $9) d on true
left join lateral (select octet_length(a.arguments::text) > 2000 as it) large on true
order by l.mine desc, l.place


-- name: list_settled
-- What ended lately, of what this person sees.
select a.id, a.kind, a.status, a.version, a.session_id, a.job_id, a.agent_id, a.agent, a.agent_name, a.step_index,
  a.action_type, a.tool_name, a.tool_digest, a.target, null as original_arguments, a.input_hash, a.invocations, a.risk,
  a.action_summary, null as agent_says, left(a.asked_for, 200) as asked_for, left(a.question, 200) as question, a.rule,
  a.policy_version, a.template, a.required_clearance, a.approvers, a.on_deny, a.self_approval, a.owner_id, a.caused_by, a.causes,
  a.escalation_level, a.channels_dispatched, a.requested_at, a.deadline, a.reminded_at, a.resolved_at, a.resolved_by,
  a.resolved_by_name, a.resolution_reason, a.resolved_via, a.created_at, a.quorum, a.votes_for, a.delegated, a.standing,
  a.action, null as details, a.settles, a.escalations, a.escalate_at,
  case when large.it then null else a.arguments end as arguments,
  case when large.it then left(a.arguments::text, 2000) end as excerpt
from approval_shown a
cross join lateral (select octet_length(a.arguments::text) > 2000 as it) large
where a.resolved_at is not null
  and sees_approval($1, (select u.roles from user_account u where u.id = $1), a.user_account_id, a.opened_by, a.approvers)
order by a.resolved_at desc
limit $2


-- name: list_similar
select * from approval_shown a
where a.tool_name = $2 and a.id <> $1 and a.status in ('approved', 'denied', 'responded') and a.kind = 'call'
order by a.resolved_at desc
limit 5


-- name: list_standing
-- Whoever is not staff sees those of their own sessions, and those that they gave.
select s.*, standing_granter(s) as granter, plane_now() as now from standing_shown s
where ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
  and ($4::uuid is null or $4 in (s.owner_id, s.opened_by, s.granted_by_id))
  and ($5::uuid is null or s.session_id = $5)
  and (not $6::boolean or s.revoked_at is null and s.expires_at > (select plane_now())
    and (s.max_calls is null or s.used_calls < s.max_calls))
order by s.created_at desc, s.id desc
limit $3


-- name: list_votes
select version, user_account_id as member_id, member, decision, reason, channel, created_at,
  voters_of(org_id, user_account_id, channel, created_at) as behind
from approval_vote where approval_id = $1 order by created_at, user_account_id


-- name: lock_attempt
-- The job of an attempt that is about to ask, under its lock; no row: the attempt has lost it, or the write was made.
select j.session_id, j.caused_by, c.causes, c.caused, j.cancel_requested_at is not null as cancelled,
  s.user_account_id as owner_id, plane_now() as now
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
cross join lateral call_causes(j.org_id, j.id, $5, '{}') c
where j.id = $1 and j.worker_id = $2 and j.epoch = $3 and j.write_seq = $4
for no key update of j


-- name: marks_of_approvals
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


-- name: next_level
select escalations -> escalation_level from approval_request where id = $1 and status = 'pending'


-- name: open_approval
select * from open_approval($1, $2, $3, $4)


-- name: person_behind
select person_behind($1, $2)


-- name: read_again
select approval_record($1, $2, $3)


-- name: record_approval_event
insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, idempotency_key, payload,
  created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, plane_now())


-- name: record_reach
select * from reach_approval($1, $2)


-- name: record_refused_decision
-- A decision that decided nothing. So many of a kind by one person stand for themselves ($8); one more row counts all that follow.
-- Returns how many rows there were before.
with earlier as (
  select count(*)::integer as rows, max(e.id) as last from approval_event e
  where e.org_id = $1 and e.approval_id = $2 and e.event_type = $3
    and case when $5::uuid is null then e.actor_member_id is null and e.actor = $6 else e.actor_member_id = $5 end),
counted as (
  update approval_event e set times = e.times + 1 from earlier
  where e.org_id = $1 and e.approval_id = $2 and e.id = earlier.last and earlier.rows > $8
  returning e.id),
added as (
  insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, payload, created_at)
  select $1, $2, $3, $4, $5, $6, $7, plane_now() from earlier where earlier.rows <= $8
  returning id)
select earlier.rows from earlier


-- name: refusal_under_terms
-- What decider_refusal says about other terms than those of the request.
select decider_refusal(jsonb_populate_record(null::approval_request, $1::jsonb), $2, $3, $4, null, null, null)


-- name: remind_approvers
with reminded as (
  update approval_request r
  set reminded_at = plane_now(), next_action_at = least(r.deadline, r.escalate_at[r.escalation_level + 1])
  where r.id = $1 and r.status = 'pending' and r.reminded_at is null
  returning org_id, id)
insert into approval_event (org_id, approval_id, event_type, payload, created_at)
select org_id, id, 'reminded', '{}', plane_now() from reminded
returning approval_id


-- name: retire_secret
update signing_secret set retire_at = plane_now() + $3::interval
where purpose = $1 and retire_at is null and created_at <= (select plane_now()) - $2::interval
returning retire_at


-- name: revoke_standing
update standing_approval set revoked_at = plane_now(), revoked_by = $2, revocation_reason = $3
where id = $1 and revoked_at is null
returning session_id


-- name: rule_changes
-- By which terms a call was asked for first, and who changed since what may change them: the org's policies, confirmations of its tool,
-- and atlases that the session was bound to. No row where it was not asked for. What has a version is compared by the one that the request
-- names, not by time: a change that was under way when it was asked for came after it. What only has a time counts at the same instant too.
select r.approvers, r.quorum, r.required_clearance, r.self_approval, coalesce((
    select jsonb_agg(jsonb_build_object('member_id', u.id, 'name', coalesce(u.display_name, c.name), 'why', c.why))
    from (
      select p.applied_by_id as identity, p.applied_by as name, format('applied version %s of the policies', p.version) as why
      from policy_version p
      where p.org_id = r.org_id and p.version > split_part(r.policy_version, '.', 1)::bigint
      union all
      select t.confirmed_by_id, t.confirmed_by, 'confirmed its tool' from tool_confirmation t
      where t.org_id = r.org_id and t.tool_name = r.tool_name and coalesce(t.version > v.confirmations, t.created_at >= r.requested_at)
      union all
      select t.revoked_by_id, t.revoked_by, 'took back what was confirmed of its tool' from tool_confirmation t
      where t.org_id = r.org_id and t.tool_name = r.tool_name
        and coalesce(t.revoked_version > v.confirmations, t.revoked_at >= r.requested_at)
      union all
      select a.published_by_id, a.published_by, format('published version %s of the atlas %s', a.version, a.atlas_id)
      from session_atlas b join atlas_version a on a.org_id = b.org_id and a.atlas_id = b.atlas_id and a.version = b.version
      where b.org_id = r.org_id and b.session_id = r.session_id and b.bound_at >= r.requested_at) c
    left join user_account u on u.org_id = r.org_id and u.id = person_behind(r.org_id, c.identity)), '[]') as authors
from approval_invocation i join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
-- An org that confirms nothing names no version of it.
cross join lateral (select coalesce(nullif(split_part(r.policy_version, '.', 3), '')::bigint, 0)) v (confirmations)
where i.call_id = $1 and r.kind = 'call'
order by r.requested_at, r.id limit 1


-- name: standing_candidates
-- Those that may cover a call: by which it was counted before comes first, then what costs no count, then what ends soonest.
-- Each with the receipt of the request that it was given with, for the worker to verify.
select s.*, u.revision as granter_revision, plane_now() as now,
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


-- name: take_due
-- Schedulers pass over what another one acts on. A lock of the row itself would come before its jobs' locks.
select pg_try_advisory_xact_lock(hashtextextended($1::uuid::text, 2))


-- name: void_tokens
update approval_token set used_at = plane_now() where user_account_id = $1 and used_at is null
returning id


-- name: release_keys
select release_keys($1, $2)


-- name: vote_answer
-- One answer of several about an uncertain call. Whoever changes their mind has one vote still.
with voted as (
  insert into approval_vote (org_id, approval_id, version, user_account_id, member, decision, reason, channel, created_at, answer)
  values ($1, $2, $3, $4, $5, 'approved', $6, $7, plane_now(), $8)
  on conflict (org_id, approval_id, version, user_account_id)
  do update set reason = excluded.reason, channel = excluded.channel, created_at = excluded.created_at, answer = excluded.answer)
insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, payload, created_at)
values ($1, $2, 'voted', $7, $4, $5, jsonb_build_object('verdict', $9::text, 'note', $6::text), plane_now())
