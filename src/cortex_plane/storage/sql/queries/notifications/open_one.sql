select n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, n.user_account_id as member_id, n.address, n.data,
  n.mapping_id, n.desired_version, n.message_ref, n.shown, n.said, n.tried_at, n.sent_at, n.attempts, n.created_at,
  c.name as connection, c.config, c.sealed as connection_sealed, c.disabled_at is not null as disabled,
  m.verified_at is not null as verified, m.removed_at is not null as removed, m.mac as mapping_mac, m.suppressed_reason, coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward') as member,
  u.deactivated_at is not null as deactivated, o.name as org, o.settings -> 'redact' as redact,
  to_jsonb(a) || jsonb_build_object('programs', program_changes(a.org_id, a.id)) as approval, coalesce(d.names, '{}') as deciders, coalesce(d.decides, false) as decides,
  (select coalesce(jsonb_agg(to_jsonb(v) || jsonb_build_object('member_id', v.user_account_id) order by v.created_at), '[]')
   from approval_vote v where v.org_id = n.org_id and v.approval_id = n.approval_id and v.version = a.version) as votes,
  (select coalesce(jsonb_agg(to_jsonb(h) || jsonb_build_object('at', h.created_at) order by h.id), '[]')
   from approval_delegation h where h.org_id = n.org_id and h.approval_id = n.approval_id) as delegations,
  plane_now() as now
from notification n
join org o on o.id = n.org_id
join channel_connection c on c.org_id = n.org_id and c.id = n.connection_id
left join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
left join channel_mapping m on m.org_id = n.org_id and m.id = n.mapping_id
left join approval_shown a on a.org_id = n.org_id and a.id = n.approval_id
left join lateral (
  select (array_agg(p.display_name order by p.display_name))[1:20] as names, bool_or(p.id = n.user_account_id) as decides
  from approval_deciders(n.org_id, n.approval_id) p where a.status = 'pending') d on true
where n.id = $1 and n.taken_by = $2 and n.taken_until > (select plane_now())
