-- One answer of several about an uncertain call. Whoever changes their mind has one vote still.
with voted as (
  insert into approval_vote (org_id, approval_id, version, user_account_id, member, decision, reason, channel, created_at, answer)
  values ($1, $2, $3, $4, $5, 'approved', $6, $7, plane_now(), $8)
  on conflict (org_id, approval_id, version, user_account_id)
  do update set reason = excluded.reason, channel = excluded.channel, created_at = excluded.created_at, answer = excluded.answer)
insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, payload, created_at)
values ($1, $2, 'voted', $7, $4, $5, jsonb_build_object('verdict', $9::text, 'note', $6::text), plane_now())
