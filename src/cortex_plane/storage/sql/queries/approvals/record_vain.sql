-- A decision that decided nothing. So many of a kind by one person stand for themselves ($8); one more row counts all that follow.
-- Returns how many rows there were before.
with earlier as (
  select count(*)::integer as rows, max(e.id) as last from approval_event e
  where e.org_id = $1 and e.approval_id = $2 and e.event_type = $3
    and case when $5::uuid is null then e.actor_member_id is null and e.actor = $6 else e.actor_member_id = $5 end),
counted as (
  update approval_event e set times = e.times + 1 from earlier
  where e.org_id = $1 and e.approval_id = $2 and e.id = earlier.last and earlier.rows > $8
  returning e.id),
added as (
  insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, payload, created_at)
  select $1, $2, $3, $4, $5, $6, $7, plane_now() from earlier where earlier.rows <= $8
  returning id)
select earlier.rows from earlier
