-- name: agents_naming
-- The agents whose newest configuration names the atlas.
select a.slug from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where a.status <> 'ARCHIVED' and v.skill_config -> 'atlases' ? $1
order by a.slug
limit $2


-- name: bind_atlases
select bind_atlases($1, $2, $3, $4)


-- name: bound_atlas_ids
select atlas_id from session_atlas where session_id = $1 order by atlas_id


-- name: bound_atlases
-- What a session is bound to and what its gates remember, with the time of that look.
select session_bound($1, $2) as bound, plane_now() as now


-- name: capabilities_without_holder
-- Which of these atlases have no version that holds, by their places.
select w.place from unnest($1::text[]) with ordinality w (id, place)
where not exists (select from atlas_version a where a.atlas_id = w.id and a.retired_at is null)
order by w.place


-- name: could_own
select deactivated_at is null and roles && array['admin', 'steward'] from user_account where id = $1


-- name: count_atlas_sessions
-- Open ones, up to a number: who asks wants to know whether there are any.
select count(*) from (
  select from session_atlas b join session s on s.org_id = b.org_id and s.id = b.session_id
  where b.atlas_id = $1 and b.version = $2 and s.status <> 'TERMINATED' limit $3) bound


-- name: get_atlas
select a.atlas_id, a.name, a.version as newest, a.published_by, a.published_at,
  (select h.version from atlas_version h
   where h.org_id = a.org_id and h.atlas_id = a.atlas_id and h.retired_at is null order by h.number desc limit 1) as holds,
  (select count(*) from atlas_version v where v.org_id = a.org_id and v.atlas_id = a.atlas_id) as versions,
  o.owner_id, u.display_name as owner, t.slug as team
from atlas_version a
cross join lateral atlas_owner(a.org_id, a.atlas_id) o
left join user_account u on u.org_id = a.org_id and u.id = o.owner_id
left join team t on t.org_id = a.org_id and t.id = o.team_id
where a.atlas_id = $1
order by a.number desc
limit 1


-- name: get_atlas_manifest
select manifest from atlas_version where atlas_id = $1 and version = $2


-- name: get_atlas_source
select source from atlas_version where atlas_id = $1 and version = $2


-- name: get_atlas_version
select a.atlas_id, a.version, a.number, a.digest, a.name, a.description, a.gates, a.warnings, a.access, a.api_keys, a.published_by,
  a.published_at, a.retired_at, a.retired_by,
  a.retired_at is null and not exists (
    select from atlas_version n
    where n.org_id = a.org_id and n.atlas_id = a.atlas_id and n.retired_at is null and n.number > a.number) as holds
from atlas_version a
where a.atlas_id = $1 and a.version = $2


-- name: get_ownership
-- No row: there is no such atlas yet. Of a team's atlas its stewards and admins say yes, and whoever of the team may publish does.
select coalesce((p.person = o.owner_id or exists (
    select from team_member m where m.org_id = $1 and m.team_id = o.team_id and m.user_account_id = p.person)) and exists (
    select from user_account u where u.org_id = $1 and u.id = p.person and u.roles && array['admin', 'steward']), false) as is_own,
  case when o.team_id is null then array(
    select u.id from user_account u
    where u.org_id = $1 and u.id = o.owner_id and u.deactivated_at is null and u.roles && array['admin', 'steward']) else array(
    select u.id from team_member m join user_account u on u.org_id = m.org_id and u.id = m.user_account_id
    where m.org_id = $1 and m.team_id = o.team_id and u.deactivated_at is null and u.roles && array['admin', 'steward']
    order by u.id) end as stewards
from atlas_owner($1, $2) o cross join (select person_behind($1, $3) as person) p


-- name: hand_over_atlas
insert into atlas_handover (org_id, atlas_id, owner_id, team_id) values ($1, $2, $3, $4)
on conflict (org_id, atlas_id) do update
set owner_id = excluded.owner_id, team_id = excluded.team_id, handed_over_at = excluded.handed_over_at


-- name: has_webhook
select exists (
  select from channel_connection c
  where c.channel_type = 'webhook' and c.disabled_at is null and c.config ->> 'url' = $1)


-- name: insert_atlas_version
insert into atlas_version (org_id, atlas_id, version, number, digest, name, description, gates, source, manifest, warnings,
  access, api_keys, published_by, published_by_id)
select $1, $2, $3, coalesce(max(a.number), 0) + 1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14
from atlas_version a where a.org_id = $1 and a.atlas_id = $2


-- name: list_atlas_versions
-- Newest first.
select a.atlas_id, a.version, a.number, a.digest, a.name, a.description, a.gates, a.warnings, a.access, a.api_keys, a.published_by,
  a.published_at, a.retired_at, a.retired_by,
  a.retired_at is null and not exists (
    select from atlas_version n
    where n.org_id = a.org_id and n.atlas_id = a.atlas_id and n.retired_at is null and n.number > a.number) as holds
from atlas_version a
where a.atlas_id = $1 and ($2::bigint is null or a.number < $2)
order by a.number desc
limit $3


-- name: list_governed_calls
-- The calls of a time span that an atlas governs, newest first, with the risk of the tool as it was published for the call. $5: the
-- plane's own tools, which none governs.
select c.id, c.tool_name, c.arguments, a.slug as agent, coalesce(x.risk, v.risk) as risk
from tool_call c
join job j on j.org_id = c.org_id and j.id = c.job_id
join session_atlas b on b.org_id = j.org_id and b.session_id = j.session_id and b.atlas_id = $1
join agent a on a.org_id = j.org_id and a.id = j.agent_id
left join known_tool v on v.app = j.app and v.name = c.tool_name and v.digest = c.tool_digest
left join external_call x on x.org_id = c.org_id and x.call_id = c.id
where c.created_at >= $2 and c.created_at < $3 and c.created_at > '-infinity' -- its index
  and (j.kind = 'external' or c.tool_name <> all ($5::text[]))
order by c.created_at desc, c.id desc
limit $4


-- name: list_atlases
-- One row for each atlas, as its newest version has it.
select distinct on (a.atlas_id) a.atlas_id, a.name, a.version as newest, a.published_by, a.published_at,
  (select h.version from atlas_version h
   where h.org_id = a.org_id and h.atlas_id = a.atlas_id and h.retired_at is null order by h.number desc limit 1) as holds,
  (select count(*) from atlas_version v where v.org_id = a.org_id and v.atlas_id = a.atlas_id) as versions,
  o.owner_id, u.display_name as owner, t.slug as team
from atlas_version a
cross join lateral atlas_owner(a.org_id, a.atlas_id) o
left join user_account u on u.org_id = a.org_id and u.id = o.owner_id
left join team t on t.org_id = a.org_id and t.id = o.team_id
where $1::text is null or a.atlas_id > $1
order by a.atlas_id, a.number desc
limit $2


-- name: lock_atlas
-- Those who change one atlas take turns, and nobody else waits.
select lock_atlas($1, $2)


-- name: lock_gates
-- Before the head of the session is locked: several jobs of a session may write what its gates remember.
select lock_gates($1, $2, plane_now())


-- name: record_gates
-- Under the lock of the session's job.
select record_gates($1, $2, $3, plane_now())


-- name: missing_webhooks
-- Which of these names no enabled webhook connection of the org has, by their places.
select w.place from unnest($1::text[]) with ordinality w (name, place)
where not exists (
  select from channel_connection c
  where c.channel_type = 'webhook' and c.disabled_at is null and (c.name = w.name or c.id::text = lower(w.name)))
order by w.place


-- name: replay_start
select plane_now()


-- name: require_atlas_access
select require_atlas_access($1, $2, $3, $4)


-- name: require_true_atlas
-- A version, and the retired ones after it: had they not been retired, no new session were bound to this one.
select n.org_id, n.atlas_id, n.version, n.number, n.digest, n.access, n.api_keys, n.retired_at is not null as retired, n.mac
from atlas_version a
join atlas_version n on n.org_id = a.org_id and n.atlas_id = a.atlas_id
  and (n.number = a.number or (n.number > a.number and n.retired_at is not null))
where a.atlas_id = $1 and a.version = $2


-- name: retire_atlas
update atlas_version set retired_at = plane_now(), retired_by = $3
where atlas_id = $1 and version = $2 and retired_at is null
returning version


-- name: sign_atlas_version
update atlas_version set mac = $3 where atlas_id = $1 and version = $2


-- name: unmatched_keys
-- Which of these globs no key fits that works today, by their places.
select g.place from unnest($1::text[]) with ordinality g (glob, place)
where not exists (
  select from api_key k
  where k.revoked_at is null and (k.expires_at is null or k.expires_at > (select plane_now())) and glob_matches(g.glob, k.name))
order by g.place
