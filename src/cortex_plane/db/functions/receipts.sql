-- What the receipt of a decision says besides the approval as this very transaction left it, and the key to sign it with.
-- `p_calls`: the calls that it decides; the jobs that wait with them go on from the checkpoints that it names.
drop function if exists approval_decided(uuid, uuid, uuid[]);
create or replace function receipt_facts(p_org uuid, p_approval uuid, p_calls uuid[]) returns jsonb
  language plpgsql set search_path = public, pg_temp as $$
begin
  return (select to_jsonb(d) from (
    select encode(r.original_hash, 'hex') as original_hash, r.resolved_at as decided_at, plane_now() as now,
      (select p.digest from policy_version p
        where p.org_id = p_org and p.version = split_part(r.policy_version, '.', 1)::bigint) as policy_digest,
      (select max(g.expires_at) from approval_grant g where g.org_id = p_org and g.approval_id = r.id) as expires_at,
      -- Those that counted: whoever ended it, and whoever could still give theirs. With one vote nobody else is looked for.
      (select coalesce(jsonb_agg(jsonb_build_object('version', v.version, 'member_id', v.user_account_id, 'member', v.member,
          'decision', v.decision, 'reason', v.reason, 'channel', v.channel, 'created_at', v.created_at)
          order by v.created_at, v.user_account_id), '[]')
        from approval_vote v where v.org_id = p_org and v.approval_id = r.id and v.version = r.version
          and (v.user_account_id = r.resolved_by
            or v.user_account_id in (select m.id from approval_deciders(p_org, p_approval) m))) as votes,
      (select coalesce(jsonb_agg(jsonb_build_object('from_member_id', h.from_member_id, 'from_member', h.from_member,
          'to_member_id', h.to_member_id, 'to_member', h.to_member, 'to_clearance', h.to_clearance, 'reason', h.reason,
          'automatic', h.automatic, 'at', h.created_at) order by h.id), '[]')
        from approval_delegation h where h.org_id = p_org and h.approval_id = r.id) as delegations,
      (select coalesce(jsonb_agg(jsonb_build_object('job', j.id,
          'step_index', (j.checkpoint #>> '{memory_context,working_data,$plane,step}')::integer,
          'crc32', (j.checkpoint ->> 'crc32')::bigint, 'mac', encode(j.checkpoint_mac, 'hex')) order by j.id), '[]')
        from job j where j.org_id = p_org and j.id in (
          select i.job_id from approval_invocation i
          where i.org_id = p_org and i.approval_id = r.id and i.call_id = any (p_calls))) as checkpoints,
      (select k.id from signing_key k where k.org_id = p_org and k.retired_at is null) as active_key
    from approval_request r where r.org_id = p_org and r.id = p_approval) d);
end
$$;
