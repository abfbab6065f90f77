-- name: deciding_members
-- Which of these could decide something at all.
select id from user_account where id = any ($1) and deactivated_at is null and roles <> '{guest}'


-- name: get_version
select version, source, digest, rows, note, applied_by, created_at from policy_version where version = $1


-- name: in_force
select id as org_id, policy_version, policy_mac from org where id = $1


-- name: insert_rows
insert into policy (org_id, version, position, level, team_id, team, name, action_type, target, effect, condition,
  required_clearance, template, timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels,
  quorum, escalation_seconds, escalate_to, standing)
select $1, $2, position, level, team_id, team, name, action_type, target, effect, condition, required_clearance, template,
  timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds,
  escalate_to, standing
from jsonb_to_recordset($3) as r (
  position integer, level text, team_id uuid, team text, name text, action_type text, target text, effect text,
  condition text, required_clearance integer, template text, timeout_seconds integer, reminder_seconds integer,
  approvers jsonb, on_deny text, self_approval boolean, final boolean, channels text[], quorum jsonb,
  escalation_seconds integer, escalate_to jsonb, standing boolean)


-- name: insert_version
insert into policy_version (org_id, version, source, digest, rows, note, applied_by, applied_by_id)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: list_versions
select version, digest, rows, note, applied_by, created_at from policy_version
where $1::bigint is null or version < $1
order by version desc
limit $2


-- name: lock_version
-- The org stands still while its rows are replaced.
select o.policy_version, (select coalesce(max(v.version), 0) from policy_version v where v.org_id = o.id) as newest
from org o where o.id = $1 for no key update of o


-- name: people
-- Who could decide something: active members, with what they may and where they stand.
select id, display_name, clearance, roles from user_account
where deactivated_at is null and roles <> '{guest}'


-- name: platform_rows
select position, name, action_type, target, effect, condition, required_clearance, template, timeout_seconds,
  reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds, escalate_to, standing
from platform_policy
order by position


-- name: rows
select position, level, team_id, team, name, action_type, target, effect, condition, required_clearance, template,
  timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds,
  escalate_to, standing
from policy where version = $1
order by position
limit $2


-- name: set_version
update org set policy_version = $2, policy_mac = $3 where id = $1


-- name: sign_version
update policy_version set mac = $2 where version = $1


-- name: version
select policies_version($1)


-- name: version_mac
select mac from policy_version where version = $1
