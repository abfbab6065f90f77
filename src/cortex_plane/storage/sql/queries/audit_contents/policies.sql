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
