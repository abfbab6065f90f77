-- Changes of atlases and policies: whose they are, and what waits for a person.

-- To whom an atlas belongs: a member, or a team; by default the person behind its first version. No row: there is no such atlas yet.
-- Neither: whoever published it is not known, and admins decide alone.
create or replace function atlas_owner(p_org uuid, p_atlas text) returns table (owner_id uuid, team_id uuid)
  language sql stable set search_path = public, pg_temp as $$
  select case when h.atlas_id is null then person_behind(p_org, a.published_by_id) else h.owner_id end, h.team_id
  from atlas_version a left join atlas_handover h on h.org_id = a.org_id and h.atlas_id = a.atlas_id
  where a.org_id = p_org and a.atlas_id = p_atlas
  order by a.number limit 1
$$;

-- Those who change one atlas take turns, and nobody else waits.
create or replace function lock_atlas(p_org uuid, p_atlas text) returns void
  language sql volatile set search_path = public, pg_temp as $$
  select pg_advisory_xact_lock(hashtextextended('atlas ' || p_org::text || ' ' || p_atlas, 0))
$$;

-- What a change is about stands still until the end of the transaction. It is locked before the requests about it, in the order of those
-- who change it without asking and cancel what waits.
create or replace function lock_change(p_org uuid, p_approval uuid) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  change record;
begin
  select r.action_type, r.target into change
  from approval_request r where r.org_id = p_org and r.id = p_approval and r.kind = 'change';
  if change.action_type = 'atlas_publish' then
    perform lock_atlas(p_org, change.target);
  elsif change.action_type = 'policy_apply' then
    perform from org o where o.id = p_org for no key update of o;
  end if;
end
$$;

-- Another version holds now: what was proposed on top of the one before is over. Returns those requests.
drop function if exists cancel_changes(uuid, text, text, uuid, text);
create or replace function cancel_changes(
  p_org uuid, p_action text, p_target text, p_except uuid, p_reason text, p_only uuid default null) returns setof uuid
  language plpgsql set search_path = public, pg_temp as $$
begin
  return query
    with ended as (
      update approval_request r
      set status = 'cancelled', next_action_at = null, resolved_at = plane_now(), resolution_reason = p_reason
      where r.org_id = p_org and r.kind = 'change' and r.status = 'pending' and r.tool_name = p_action and r.target = p_target
        and r.id is distinct from p_except and (p_only is null or r.id = p_only)
      returning r.id)
    , told as (
      insert into approval_event (org_id, approval_id, event_type, payload, created_at)
      select p_org, e.id, 'cancelled', jsonb_build_object('reason', p_reason), plane_now() from ended e)
    select e.id from ended e order by e.id;
end
$$;

-- The platform's rows become these. Returns the number of the new version.
create or replace function replace_platform_policies(p_rows jsonb) returns bigint
  language plpgsql security definer set search_path = public, pg_temp as $$
begin
  delete from platform_policy;
  insert into platform_policy (position, name, action_type, target, effect, condition, required_clearance, template, timeout_seconds,
    reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds, escalate_to, standing,
    reason)
  select position, name, action_type, target, effect, condition, required_clearance, template, timeout_seconds, reminder_seconds,
    approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds, escalate_to, standing, reason
  from jsonb_to_recordset(p_rows) as r (
    position integer, name text, action_type text, target text, effect text, condition text, required_clearance integer,
    template text, timeout_seconds integer, reminder_seconds integer, approvers jsonb, on_deny text, self_approval boolean,
    final boolean, channels text[], quorum jsonb, escalation_seconds integer, escalate_to jsonb, standing boolean, reason text);
  return (select version from platform_policy_version);
end
$$;

-- Whoever changes the platform's rows waits here, and nobody else. Returns the version that holds.
create or replace function lock_platform_policies() returns bigint
  language sql volatile security definer set search_path = public, pg_temp as $$
  select version from platform_policy_version for update
$$;

call pg_temp.give_functions('cortex_scheduler', 'replace_platform_policies(jsonb)', 'lock_platform_policies()');

-- What concerns every org is on the trail of each. Heads are locked in the order of their orgs, so that two who do this never wait for
-- each other; everybody else locks one head, as the last thing.
create or replace function append_to_every_org(p_action text, p_body bytea) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  own text := current_setting('app.org_id', true);
  the_org uuid;
begin
  for the_org in select r.org_id from resolve_orgs(null, null, null) r order by r.org_id loop
    perform set_config('app.org_id', the_org::text, true);
    perform org_append(the_org, array[p_action], array[p_body]);
  end loop;
  perform set_config('app.org_id', own, true);
end
$$;
