-- The newest hundred: whoever tries in vain again and again must not make a card that nobody can load.
select * from (
  select id, event_type, channel, actor_member_id, actor, payload, times, created_at
  from approval_event where approval_id = $1 order by id desc limit 100) e
order by id
