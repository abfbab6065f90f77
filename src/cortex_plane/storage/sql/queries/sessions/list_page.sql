select s.id, s.kind, s.user_account_id, s.agent_id, s.status, s.context, s.title, s.origin_channel_mapping_id, s.held_at, s.hold_reason,
  s.revision, h.last_activity_at, s.created_at, s.updated_at,
  (select coalesce(jsonb_agg(jsonb_build_object(
      'atlas_id', b.atlas_id, 'version', b.version, 'digest', b.digest, 'bound_at', b.bound_at) order by b.atlas_id), '[]')
   from session_atlas b where b.org_id = s.org_id and b.session_id = s.id) as atlases
from session s join session_head h on h.org_id = s.org_id and h.session_id = s.id
where ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
  and ($4::uuid is null or s.user_account_id = $4 or s.opened_by = $4)
  and ($5::uuid is null or s.user_account_id = $5)
  and ($6::text is null or s.status = $6)
  and ($7::uuid is null or s.agent_id = $7)
order by s.created_at desc, s.id desc
limit $3
