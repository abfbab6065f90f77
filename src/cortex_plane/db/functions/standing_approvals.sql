-- A standing approval as surfaces show it.
drop view if exists standing_shown cascade;
create view standing_shown with (security_invoker = true) as
  select s.org_id, s.id, s.session_id, a.slug as agent, s.tool_name, s.tool_digest, encode(s.input_hash, 'hex') as input_hash,
    s.condition, s.max_calls, s.used_calls, s.expires_at, s.granted_by, s.granted_by_id, s.required, s.approval_id, s.reason,
    s.revoked_at, s.revoked_by, s.revocation_reason, s.created_at, s.last_used_at, n.user_account_id as owner_id, n.opened_by
  from standing_approval s
  join agent a on a.org_id = s.org_id and a.id = s.agent_id
  join session n on n.org_id = s.org_id and n.id = s.session_id;
grant select on standing_shown to cortex_app;

-- Whoever gave a standing approval, as they are now, and why they could not approve a call under p_terms (columns of
-- approval_request) that p_shapers shaped. p_at: when it was given.
create or replace function standing_granter(p_org uuid, p_granter uuid, p_terms jsonb, p_shapers uuid[], p_at timestamptz) returns jsonb
  language sql stable set search_path = public, pg_temp as $$
  select jsonb_build_object('id', u.id, 'name', u.display_name, 'roles', u.roles, 'clearance', u.clearance,
    'active', u.deactivated_at is null,
    'refusal', decider_refusal(jsonb_populate_record(null::approval_request, p_terms), u.id, u.roles, u.clearance, null, p_shapers,
      case when p_shapers is not null then voters_of(p_org, u.id, null, p_at) end))
  from user_account u where u.org_id = p_org and u.id = p_granter
$$;

-- The same under the terms that it was given under.
create or replace function standing_granter(s standing_shown) returns jsonb
  language sql stable set search_path = public, pg_temp as $$
  select standing_granter(s.org_id, s.granted_by_id, jsonb_build_object('approvers', s.required -> 'approvers',
    'required_clearance', s.required -> 'clearance', 'self_approval', true, 'owner_id', s.owner_id), null, null)
$$;

-- The last look at a standing approval, in the transaction that writes the intent: it is for this call, it is there,
-- whoever gave it is as they were when it was judged, and there is a call left. Each call is counted once, however often
-- it is sent.
create or replace function use_standing(
  p_org uuid, p_session uuid, p_standing uuid, p_call uuid, p_granter_revision integer) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  counts integer;
begin
  -- Locked by a statement of its own: the next one sees everything that was committed while this one waited.
  perform from standing_approval s where s.org_id = p_org and s.id = p_standing for no key update;
  if found then
    insert into standing_use (org_id, standing_id, call_id, created_at) values (p_org, p_standing, p_call, plane_now())
    on conflict do nothing;
    get diagnostics counts = row_count;
    update standing_approval s set used_calls = s.used_calls + counts, last_used_at = plane_now()
    from tool_call c
    where s.org_id = p_org and s.id = p_standing and s.session_id = p_session
      and c.org_id = p_org and c.id = p_call and c.tool_name = s.tool_name and c.tool_digest = s.tool_digest
      and coalesce(s.input_hash, c.input_hash) = c.input_hash
      and s.revoked_at is null and s.expires_at > plane_now() and (s.max_calls is null or s.used_calls + counts <= s.max_calls)
      and exists (select from user_account u where u.org_id = p_org and u.id = s.granted_by_id
        and u.deactivated_at is null and u.revision = p_granter_revision);
  end if;
  if not found then
    raise exception using errcode = 'CX409', detail = 'grant_refused',
      message = 'A standing approval does not cover this call any more.', hint = 'It is authorised again.';
  end if;
end
$$;
