-- By which terms a call was asked for first, and who changed since what may change them: the org's policies, confirmations of its tool,
-- and atlases that the session was bound to. No row where it was not asked for.
select r.approvers, r.quorum, r.required_clearance, r.self_approval, coalesce((
    select jsonb_agg(jsonb_build_object('member_id', u.id, 'name', coalesce(u.display_name, c.name), 'why', c.why))
    from (
      select p.applied_by_id as identity, p.applied_by as name, format('applied version %s of the policies', p.version) as why
      from policy_version p
      where p.org_id = r.org_id and p.version > split_part(r.policy_version, '.', 1)::bigint
      union all
      select t.confirmed_by_id, t.confirmed_by, 'confirmed its tool' from tool_confirmation t
      where t.org_id = r.org_id and t.tool_name = r.tool_name and t.created_at > r.requested_at
      union all
      select null, t.revoked_by, 'took back what was confirmed of its tool' from tool_confirmation t
      where t.org_id = r.org_id and t.tool_name = r.tool_name and t.revoked_at > r.requested_at
      union all
      select v.published_by_id, v.published_by, format('published version %s of the atlas %s', v.version, v.atlas_id)
      from session_atlas b join atlas_version v on v.org_id = b.org_id and v.atlas_id = b.atlas_id and v.version = b.version
      where b.org_id = r.org_id and b.session_id = r.session_id and b.bound_at > r.requested_at) c
    left join user_account u on u.org_id = r.org_id and u.id = person_behind(r.org_id, c.identity)), '[]') as authors
from approval_invocation i join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
where i.call_id = $1 and r.kind = 'call'
order by r.requested_at, r.id limit 1
