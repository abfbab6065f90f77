-- Votes that are not in the trail, and votes of the trail that are not here. `$1`: at most so many.
with entries as (
  select e.session_id, e.seq, e.body is null as is_blank, id_in(b #>> '{data,approval}') as approval_id,
    b #>> '{data,version}' as version, id_in(b #>> '{actor,account}') as member_id, b #>> '{data,decision}' as decision,
    b #>> '{data,answer}' as answer
  from audit_entry e cross join lateral entry_body(e.body) b
  where e.action in ('approval_vote', 'approval_decision')),
-- Whoever said yes may still say no: the last word counts.
said as (
  select distinct on (approval_id, version, member_id) approval_id, version, member_id, decision
  from entries where approval_id is not null and version is not null and member_id is not null
  order by approval_id, version, member_id, seq desc),
cast_votes as (select * from approval_vote where answer is null),
faults as (
  select coalesce(v.approval_id, s.approval_id) as approval_id, coalesce(v.member, s.member_id::text) as member,
    case when v.approval_id is null then 'the trail holds it, and it is gone'
      when s.approval_id is null then 'no entry of the trail holds it'
      else 'it is ' || v.decision || ', and the trail says ' || s.decision end as reason
  from cast_votes v
  full join said s on s.approval_id = v.approval_id and s.version = v.version::text and s.member_id = v.user_account_id
  where v.decision is distinct from s.decision
  union all
  -- What somebody said of an uncertain call. Entries of earlier releases do not hold the answer.
  select v.approval_id, v.member, 'no entry of the trail holds it'
  from approval_vote v
  where v.answer is not null and not exists (
    select from entries s
    where s.approval_id = v.approval_id and s.member_id = v.user_account_id and s.version is null
      and coalesce(s.answer, v.answer) = v.answer))
select 'approval ' || f.approval_id || ', vote of ' || f.member as subject, f.reason
from faults f
where f.reason not like '%no entry%' or not exists (
  select from entries e join approval_request r on r.session_id = e.session_id
  where r.id = f.approval_id and e.is_blank)
order by 1
limit $1
