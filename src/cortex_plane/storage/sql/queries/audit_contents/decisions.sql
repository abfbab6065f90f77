-- Requests that are not as the trail says they were decided. `$1`: at most so many.
with decided as (
  select distinct on (id_in(b #>> '{data,approval}')) id_in(b #>> '{data,approval}') as id, e.format,
    b #>> '{data,decision}' as decision, b #>> '{data,version}' as version, b #>> '{data,input_hash}' as input_hash,
    b #>> '{actor,account}' as account, b #>> '{actor,name}' as name
  from audit_entry e cross join lateral entry_body(e.body) b
  where e.action = 'approval_decision' and id_in(b #>> '{data,approval}') is not null
  order by 1, e.seq desc),
known as (
  select coalesce(r.id, d.id) as id, r.session_id,
    case when r.id is null then 'the trail decided it, and it is gone'
      when d.id is null then 'it is ' || r.status || ', and no entry of the trail decided it'
      when r.status <> d.decision then 'it is ' || r.status || ', and the trail says ' || coalesce(d.decision, 'nothing')
      when r.version::text <> d.version or encode(r.input_hash, 'hex') <> d.input_hash
        then 'its version or arguments are not those that the trail says were decided'
      when r.resolved_by::text is distinct from d.account or r.resolved_by_name is distinct from d.name
        then 'the trail names somebody else who decided it: ' || coalesce(d.name, 'nobody')
      when d.format > 1 and not exists (select from approval_receipt c where c.org_id = r.org_id and c.approval_id = r.id)
        then 'the trail decided it, and its receipt is gone'
    end as reason
  from (select * from approval_request where status in ('approved', 'denied') and kind <> 'uncertain_effect') r
  full join decided d on d.id = r.id)
select 'approval ' || k.id as subject,
  -- Whatever has another status is not among the decided ones.
  coalesce((select 'it is ' || o.status || ', and the trail decided it' from approval_request o
    where o.id = k.id and k.session_id is null), k.reason) as reason
from known k
where k.reason is not null and (k.reason not like '%no entry%' or not exists (
  select from audit_entry e where e.chain_id = k.session_id and e.action = 'approval_decision' and e.body is null))
order by k.id
limit $1
