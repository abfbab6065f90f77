select s.id, s.kind, s.user_account_id, s.agent_id, s.status, s.context, s.title, s.origin_channel_mapping_id, s.held_at, s.hold_reason,
  s.revision, h.last_activity_at, s.created_at, s.updated_at,
  (select coalesce(jsonb_agg(jsonb_build_object(
      'atlas_id', b.atlas_id, 'version', b.version, 'digest', b.digest, 'bound_at', b.bound_at) order by b.atlas_id), '[]')
   from session_atlas b where b.org_id = s.org_id and b.session_id = s.id) as atlases
from session s join session_head h on h.org_id = s.org_id and h.session_id = s.id
where s.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by))
