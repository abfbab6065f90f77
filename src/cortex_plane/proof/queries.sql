-- name: append_to_org
select org_append($1, $2, $3)


-- name: append_to_session
select session_append($1, $2, 0, $3, $4, $5, $6, $7, $8)


-- name: stream_entries
select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at
from audit_entry where chain_id = $1 and seq > $2
order by seq
limit $3


-- name: stream_all_entries
-- Every entry, chain after chain, in the order of the primary key: nothing is sorted, so the first row comes at once.
select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at from audit_entry
order by org_id, chain_id, seq


-- name: head_of_session
-- Where one session's chain must end.
select s.id as chain_id, h.audit_seq as seq, h.audit_hash as hash
from session s left join session_head h on h.org_id = s.org_id and h.session_id = s.id
where s.id = $1


-- name: stream_heads
-- Where every chain must end, in the order of the chains. A session whose head is gone shows up without one.
select o.id as chain_id, h.audit_seq as seq, h.audit_hash as hash
from org o left join org_head h on h.org_id = o.id
union all
select s.id, h.audit_seq, h.audit_hash
from session s left join session_head h on h.org_id = s.org_id and h.session_id = s.id
order by chain_id


-- name: database_time
select plane_now()


-- name: list_session_entries
-- Every entry of one session's chain.
select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at from audit_entry
where chain_id = $1
order by org_id, chain_id, seq


-- name: atlas_faults
-- Atlas versions that are not what the trail published or retired. `$1`: at most so many.
with entries as (
  select e.action, b #>> '{data,atlas_id}' as atlas_id, b #>> '{data,version}' as version, b #>> '{data,digest}' as digest
  from audit_entry e cross join lateral entry_body(e.body) b
  where e.action in ('atlas_published', 'atlas_retired') and e.session_id is null),
published as (select atlas_id, version, digest from entries where action = 'atlas_published' and atlas_id is not null),
retired as (select distinct atlas_id, version from entries where action = 'atlas_retired' and atlas_id is not null),
known as (
  select coalesce(a.atlas_id, p.atlas_id) || ' ' || coalesce(a.version, p.version) as name,
    case when a.atlas_id is null then 'the trail published it, and it is gone'
      when p.atlas_id is null then 'no entry of the trail published it'
      when a.digest <> p.digest or encode(sha256(convert_to(a.manifest, 'UTF8')), 'hex') <> p.digest
        then 'its content is not what the trail published'
      when a.retired_at is null and r.atlas_id is not null then 'the trail retired it, and it is not retired'
      when a.retired_at is not null and r.atlas_id is null then 'it is retired, and no entry of the trail retired it'
    end as reason
  from atlas_version a
  full join published p on p.atlas_id = a.atlas_id and p.version = a.version
  left join retired r on r.atlas_id = a.atlas_id and r.version = a.version)
select 'atlas ' || name as subject, reason
from known
where reason is not null and (reason not like '%no entry%' or not exists (
  select from audit_entry e
  where e.action in ('atlas_published', 'atlas_retired') and e.session_id is null and e.body is null))
order by subject
limit $1


-- name: stream_checkpoints
select id, whole_checkpoint(checkpoint, memory)::text as checkpoint, checkpoint_mac as mac from job where checkpoint is not null order by org_id, id


-- name: decision_faults
-- Requests that are not as the trail says they were decided. `$1`: at most so many.
with decided as (
  select distinct on (id_in(b #>> '{data,approval}')) id_in(b #>> '{data,approval}') as id, e.format,
    b #>> '{data,decision}' as decision, b #> '{data,answer}' as answer, b #>> '{data,version}' as version, b #>> '{data,input_hash}' as input_hash,
    b #>> '{actor,account}' as account, b #>> '{actor,name}' as name
  from audit_entry e cross join lateral entry_body(e.body) b
  where e.action = 'approval_decision' and id_in(b #>> '{data,approval}') is not null
  order by 1, e.seq desc),
known as (
  select coalesce(r.id, d.id) as id, coalesce(r.session_id, r.org_id) as chain_id, r.id is null as is_gone,
    case when r.id is null then 'the trail decided it, and it is gone'
      when d.id is null then 'it is ' || r.status || ', and no entry of the trail decided it'
      when r.status <> d.decision then 'it is ' || r.status || ', and the trail says ' || coalesce(d.decision, 'nothing')
      when r.version::text <> d.version or encode(r.input_hash, 'hex') <> d.input_hash
        then 'its version or arguments are not those that the trail says were decided'
      when r.answer is distinct from d.answer then 'its answer is not what the trail says was answered'
      when r.resolved_by::text is distinct from d.account or r.resolved_by_name is distinct from d.name
        then 'the trail names somebody else who decided it: ' || coalesce(d.name, 'nobody')
      when d.format > 1 and not exists (select from approval_receipt c where c.org_id = r.org_id and c.approval_id = r.id)
        then 'the trail decided it, and its receipt is gone'
    end as reason
  from (select * from approval_request where status in ('approved', 'denied', 'responded') and kind <> 'uncertain_effect') r
  full join decided d on d.id = r.id)
select 'approval ' || k.id as subject,
  -- Whatever has another status is not among the decided ones.
  coalesce((select 'it is ' || o.status || ', and the trail decided it' from approval_request o
    where o.id = k.id and k.is_gone), k.reason) as reason
from known k
where k.reason is not null and (k.reason not like '%no entry%' or not exists (
  select from audit_entry e where e.chain_id = k.chain_id and e.action = 'approval_decision' and e.body is null))
order by k.id
limit $1


-- name: message_faults
-- Messages of people whose text is not what the trail says was received. Each has one entry, in the same order. `$1`: at most so many.
with said as (
  select session_id, seq, text, row_number() over (partition by session_id order by seq) as number
  from message where role = 'user'),
received as (
  select session_id, seq, body, row_number() over (partition by session_id order by seq) as number
  from audit_entry where action = 'message_received' and session_id is not null),
known as (
  select session_id, s.seq as message, r.seq as entry,
    r.body is null or encode(sha256(convert_to(s.text, 'UTF8')), 'hex') = entry_body(r.body) #>> '{data,text_sha256}' as is_same
  from said s full join received r using (session_id, number))
select 'session ' || session_id || coalesce(', message ' || message, '') as subject,
  case when message is null then 'the message of entry ' || entry || ' is gone'
    when entry is null then 'no entry of the trail received it'
    else 'its text is not what entry ' || entry || ' says was received' end as reason
from known
where message is null or entry is null or is_same is not true
order by session_id, coalesce(message, entry)
limit $1


-- name: policy_faults
-- Versions of the policies that are not what the trail applied. `$1`: at most so many.
with applied as (
  select b #>> '{data,version}' as version, b #>> '{data,digest}' as digest
  from audit_entry e cross join lateral entry_body(e.body) b
  where e.action = 'policy_applied' and e.session_id is null and b is not null),
known as (
  select p.version, coalesce(p.version::text, a.version) as name, a.version is not null as is_applied,
    p.digest = a.digest and encode(sha256(convert_to(p.source, 'UTF8')), 'hex') = a.digest as is_same
  from policy_version p full join applied a on a.version = p.version::text)
select 'policy version ' || k.name as subject,
  case when k.version is null then 'the trail applied it, and it is gone'
    when not k.is_applied then 'no entry of the trail applied it'
    else 'its file is not the one that the trail applied' end as reason
from known k
where k.version is null or k.is_same is false
  or (not k.is_applied and not exists (
    select from audit_entry e where e.action = 'policy_applied' and e.session_id is null and e.body is null))
union all
select 'policy version ' || o.policy_version, 'it is in force, and the trail applied version ' || last.version || ' last'
from org o cross join (
  select a.version from applied a where a.version ~ '^[0-9]{1,18}$' order by a.version::bigint desc limit 1) last
where o.policy_version::text <> last.version
order by subject
limit $1


-- name: policy_digests
-- What the trail says of the rows of each version; entries of earlier releases say nothing.
select b #>> '{data,version}' as version, b #>> '{data,rows_digest}' as digest
from audit_entry e cross join lateral entry_body(e.body) b
where e.action = 'policy_applied' and e.session_id is null and b #>> '{data,rows_digest}' is not null


-- name: policy_rows
-- Every row of every version, with the names in it as they were looked up; as text, because whoever wrote it may have written anything.
select p.version, to_jsonb(r)::text as row
from policy p cross join lateral (
  select p.position, p.level, p.team_id, p.team, p.name, p.action_type, p.target, p.effect, p.condition, p.required_clearance,
    p.template, p.timeout_seconds, p.reminder_seconds, p.approvers, p.on_deny, p.self_approval, p.final, p.channels, p.quorum,
    p.escalation_seconds, p.escalate_to, p.standing, p.reason) r
order by p.org_id, p.version, p.position


-- name: stream_receipts
-- Every receipt, with what its request says.
select c.approval_id, c.body, c.signature, c.key_id, r.status, r.version, encode(r.input_hash, 'hex') as input_hash
from approval_receipt c join approval_request r on r.org_id = c.org_id and r.id = c.approval_id
order by c.org_id, c.approval_id


-- name: reply_faults
-- Replies of agents that are not among the messages as the trail says. Entries of earlier releases hold no digest. `$1`: at most so many.
select 'session ' || e.session_id || ', job ' || e.job_id as subject,
  'the reply of entry ' || e.seq || ' is not among its messages' as reason
from audit_entry e cross join lateral entry_body(e.body) b
where e.action in ('step_completed', 'job_completed') and b #>> '{data,reply_sha256}' is not null and not exists (
  select from message m
  where m.org_id = e.org_id and m.session_id = e.session_id and m.role = 'assistant' and m.job_id = e.job_id
    and encode(sha256(convert_to(m.text, 'UTF8')), 'hex') = b #>> '{data,reply_sha256}')
order by e.chain_id, e.seq
limit $1


-- name: stream_results
-- The results of calls whose digest the trail holds, as they are kept now. A call that ended does not change any more.
select e.chain_id, e.seq, said.call, said.digest, c.result::text as result
from audit_entry e
cross join lateral entry_body(e.body) b
cross join lateral (
  select b #>> '{data,call}' as call, b #>> '{data,result_hash}' as digest
  where e.action in ('call_settled', 'effect_settled')
  union all
  select x ->> 'id', x ->> 'result_hash'
  from jsonb_array_elements(case jsonb_typeof(b #> '{data,calls}') when 'array' then b #> '{data,calls}' else '[]' end) x
  where e.action = 'step_completed') said
left join tool_call c on c.org_id = e.org_id and c.id = id_in(said.call)
where e.action in ('call_settled', 'effect_settled', 'step_completed') and said.digest is not null


-- name: vote_faults
-- Votes that are not in the trail, and votes of the trail that are not here. `$1`: at most so many.
with entries as (
  select e.chain_id, e.seq, e.body is null as is_blank, id_in(b #>> '{data,approval}') as approval_id,
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
  select from entries e join approval_request r on coalesce(r.session_id, r.org_id) = e.chain_id
  where r.id = f.approval_id and e.is_blank)
order by 1
limit $1


-- name: get_receipt
select r.approval_id, r.body, r.signature, r.key_id, k.public_key, r.created_at
from approval_receipt r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.approval_id = $1


-- name: roots_above
select r.org_id, r.seq, r.hash, r.body, r.signature, r.key_id, k.public_key, r.created_at
from audit_root r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.seq > $1
order by r.seq
limit $2


-- name: list_every_root
-- As grown.sql, of all chains: where there is no snapshot to start from.
select h.chain_id, h.seq, h.hash, rooted.audit_seq is null as is_new, pg_current_snapshot()::text as snapshot,
  (select plane_now()) as now
from (
  select s.session_id as chain_id, s.audit_seq as seq, s.audit_hash as hash from session_head s
  union all
  select o.org_id, o.audit_seq, o.audit_hash from org_head o) h
left join lateral (
  select r.audit_seq from audit_root_head r where r.chain_id = h.chain_id order by r.root_seq desc limit 1) rooted on true
where h.seq > coalesce(rooted.audit_seq, 0)
order by h.chain_id
limit $1


-- name: stream_roots
select seq, body, hash, key_id, signature from audit_root order by org_id, seq


-- name: grown_chains
-- The chains that were appended to by a transaction which the last root's snapshot ($1) could not see. One statement sees
-- one snapshot, and locks nothing.
with changed as (
  select distinct e.chain_id from audit_entry e
  where e.xid >= pg_snapshot_xmin($1::text::pg_snapshot) and not pg_visible_in_snapshot(e.xid, $1::text::pg_snapshot))
select c.chain_id, h.seq, h.hash, rooted.audit_seq is null as is_new, pg_current_snapshot()::text as snapshot,
  (select plane_now()) as now
from changed c
cross join lateral (
  select s.audit_seq as seq, s.audit_hash as hash from session_head s where s.session_id = c.chain_id
  union all
  select o.audit_seq, o.audit_hash from org_head o where o.org_id = c.chain_id) h
left join lateral (
  select r.audit_seq from audit_root_head r where r.chain_id = c.chain_id order by r.root_seq desc limit 1) rooted on true
where h.seq > coalesce(rooted.audit_seq, 0)
order by c.chain_id
limit $2


-- name: root_heads
-- Every head that a root covers, in the order of the chains, and in each of them in the order of the roots.
select root_seq, chain_id, audit_seq as seq, hash from audit_root_head order by org_id, chain_id, root_seq


-- name: insert_root
-- No row where somebody else made this one first.
insert into audit_root (org_id, seq, previous, body, hash, key_id, signature, chains, snapshot, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::pg_snapshot, $10)
on conflict (org_id, seq) do nothing
returning seq


-- name: insert_root_heads
insert into audit_root_head (org_id, root_seq, chain_id, audit_seq, hash)
select $1, $2, h.chain_id, h.seq, h.hash from unnest($3::uuid[], $4::bigint[], $5::bytea[]) h (chain_id, seq, hash)


-- name: last_root
select seq, hash, chains, snapshot::text as snapshot,
  coalesce(pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(pg_current_snapshot()), true) as foreign_snapshot
from audit_root order by seq desc limit 1


-- name: list_roots
select r.seq, r.previous, r.hash, r.body, r.signature, r.key_id, r.chains, k.public_key, r.created_at
from audit_root r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.seq < $1
order by r.seq desc
limit $2


-- name: newest_root
select r.org_id, r.seq, r.hash, r.body, r.signature, r.key_id, k.public_key, r.created_at
from audit_root r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
order by r.seq desc
limit 1


-- name: active_signing_key
select id, public_key, sealed from signing_key where retired_at is null


-- name: insert_signing_key
-- Nothing where somebody else made one at the same moment: theirs it is.
insert into signing_key (org_id, id, public_key, sealed) values ($1, $2, $3, $4)
on conflict (org_id) where retired_at is null do nothing
returning id


-- name: signing_key
select id, public_key, sealed from signing_key order by created_at, id


-- name: list_signing_keys
select id, public_key, created_at, retired_at from signing_key order by created_at, id


-- name: retire_signing_key
update signing_key set retired_at = plane_now() where retired_at is null returning id, public_key


-- name: was_rotated_to
select exists (
  select from audit_entry e cross join lateral entry_body(e.body) b
  where e.session_id is null and e.action = 'master_key_rotated' and b #>> '{data,fingerprint}' = $1)
