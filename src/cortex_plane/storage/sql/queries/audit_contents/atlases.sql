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
