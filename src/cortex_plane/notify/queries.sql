-- name: add_connection_notice
select notify_mapping($1, $2)


-- name: add_verdict
insert into notification (org_id, id, kind, call_id, connection_id, channel_type, address, data, next_attempt_at, created_at)
select c.org_id, $1, 'verdict', $2, c.id, c.channel_type, $4, $5, plane_now(), plane_now() from channel_connection c where c.id = $3
on conflict do nothing


-- name: advance_listener
update channel_listener set cursor = coalesce($4, cursor), last_error = null, updated_at = plane_now()
where connection_id = $1 and owner_id = $2 and epoch = $3 and leased_until > plane_now()
returning true


-- name: answer_webhook
update inbound_event set answer = $3, answered_at = plane_now()
where connection_id = $1 and event_id = $2 and answer is null
returning true


-- name: begin_delivery
update notification n
set tried_at = coalesce(n.tried_at, plane_now()), attempts = n.attempts + 1,
  -- A lease that is young stays as it is, so that no index has to learn of this.
  taken_until = case when n.taken_until < plane_now() + $4::interval * 0.9 then plane_now() + $4::interval else n.taken_until end
where n.id = $1 and n.lane = $3 and n.taken_by = $2
returning exists (
  select from notification o
  where o.lane = $3 and o.taken_by = $2 and o.id <> $1 and o.taken_until < plane_now() + $4::interval * 0.75) as others_run_out


-- name: choose_chat_agent
update channel_chat set agent_id = $2 where id = $1


-- name: claim_webhook
insert into inbound_event (org_id, connection_id, event_id, body_hash) values ($1, $2, $3, $4)
on conflict do nothing


-- name: count_failure
-- $2: how long its vendor asked to wait; null where it did not. $3: so many failures in a row are no accident; from then on everything
-- that goes over it waits, twice as long after each further one, at first $4 and at most $5.
update channel_connection
set failing_since = coalesce(failing_since, plane_now()), failures = failures + 1,
  pause_reason = case when $2::interval is not null or failures + 1 >= $3 then $6 else pause_reason end,
  paused_until = greatest(paused_until, case
    when $2::interval is not null then plane_now() + $2::interval
    when failures + 1 >= $3 then plane_now() + least($4::interval * power(2, least(failures + 1 - $3, 20)), $5::interval) end)
where id = $1
returning failures


-- name: report_connection
select report_connection($1, $2, $3)


-- name: delete_prompt
delete from channel_prompt where connection_id = $1 and chat_id = $2 and message_ref = $3


-- name: deliveries_of_approval
select n.id, n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, c.name as connection, n.user_account_id as member_id,
  coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward', n.data ->> 'place') as member, n.address, n.status, n.attempts, n.desired_version, n.rendered_version,
  case when n.status = 'pending' then greatest(n.next_attempt_at, c.paused_until, held_until(n)) end as next_attempt_at,
  n.last_error, n.message_ref, n.sent_at, n.created_at
from notification n
join channel_connection c on c.org_id = n.org_id and c.id = n.connection_id
left join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
where n.approval_id = $1
order by n.created_at, n.seq


-- name: disable_connection
update channel_connection
set disabled_at = plane_now(), disabled_reason = $2, revision = revision + 1, updated_at = plane_now()
where id = $1 and disabled_at is null
returning name


-- name: get_card_source
select n.id, n.approval_id, n.desired_version, o.name as org, o.settings -> 'redact' as redact,
  to_jsonb(a) || jsonb_build_object('programs', program_changes(a.org_id, a.id)) as approval,
  coalesce((select array_agg(p.display_name order by p.display_name) from approval_deciders(n.org_id, n.approval_id) p
    where a.status = 'pending'), '{}') as deciders,
  (select coalesce(jsonb_agg(to_jsonb(v) || jsonb_build_object('member_id', v.user_account_id) order by v.created_at), '[]')
   from approval_vote v where v.org_id = n.org_id and v.approval_id = n.approval_id and v.version = a.version) as votes,
  (select coalesce(jsonb_agg(to_jsonb(h) || jsonb_build_object('at', h.created_at) order by h.id), '[]')
   from approval_delegation h where h.org_id = n.org_id and h.approval_id = n.approval_id) as delegations
from notification n
join org o on o.id = n.org_id
join approval_shown a on a.org_id = n.org_id and a.id = n.approval_id
where n.id = $1 and n.connection_id = $2 and n.kind = 'approval'


-- name: get_delivery
select n.id, n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, c.name as connection, n.user_account_id as member_id,
  coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward', n.data ->> 'place') as member, n.address, n.status, n.attempts, n.desired_version, n.rendered_version,
  case when n.status = 'pending' then greatest(n.next_attempt_at, c.paused_until, held_until(n)) end as next_attempt_at,
  n.last_error, n.message_ref, n.sent_at, n.created_at
from notification n
join channel_connection c on c.org_id = n.org_id and c.id = n.connection_id
left join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
where n.id = $1


-- name: get_prompt
select data from channel_prompt where connection_id = $1 and chat_id = $2 and message_ref = $3 and sender_id = $4


-- name: get_reply
-- Nobody hears any more what concerns a conversation that they left: the sender of the chat must still be the session's person, or the
-- member whom its guest turned out to be.
select a.name as agent, coalesce(m.text, w.text) as text, j.status, j.error_message, n.data ? 'stream' as is_partial,
  n.data ->> 'ended' as ended,
  (select r.status from approval_invocation i join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
   where i.org_id = n.org_id and i.job_id = j.id order by r.resolved_at desc nulls last limit 1) as decision,
  exists (select from channel_chat c
    join channel_mapping w on w.org_id = n.org_id and w.connection_id = c.connection_id and w.channel_user_id = c.sender_id
      and w.verified_at is not null
    join user_account p on p.org_id = n.org_id and p.id = s.user_account_id and w.user_account_id in (p.id, p.became)
    where c.org_id = n.org_id and c.id = (n.data ->> 'chat')::uuid) as reachable
from notification n
join session s on s.org_id = n.org_id and s.id = (n.data ->> 'session')::uuid
join agent a on a.org_id = n.org_id and a.id = s.agent_id
left join message m on m.org_id = n.org_id and m.session_id = s.id and m.seq = (n.data ->> 'seq')::bigint
left join job j on j.org_id = n.org_id and j.id = (n.data ->> 'job')::uuid
left join lateral (
  select coalesce(
    (select string_agg(c.text, '' order by c.seq) from text_chunk c
     where c.org_id = n.org_id and c.job_id = (n.data #>> '{stream,job}')::uuid and c.step_index = (n.data #>> '{stream,step}')::integer),
    (select d.response ->> 'text' from step d
     where d.org_id = n.org_id and d.job_id = (n.data #>> '{stream,job}')::uuid
       and d.step_index = (n.data #>> '{stream,step}')::integer)) as text) w on n.data ? 'stream'
where n.id = $1


-- name: get_webhook
select body_hash, answer from inbound_event where connection_id = $1 and event_id = $2


-- name: give_up_delivery
update notification n
set attempts = $3, last_error = $4, taken_by = null, taken_until = null, status = 'dead', next_attempt_at = null
where n.id = $1 and n.taken_by = $2
returning n.id


-- name: hasten_delivery
-- What somebody sends or changes at this moment finds its own time. What only holds its lane lets it go.
with waiting as (
  select n.id from notification n
  where n.org_id = $1 and n.connection_id = $2 and n.status = 'pending' and (n.taken_by is null or n.taken_by = holding_claim())
  order by n.id
  for no key update skip locked)
update notification n set next_attempt_at = least(n.next_attempt_at, plane_now()), attempts = 0, taken_by = null, taken_until = null
from waiting w where n.org_id = $1 and n.id = w.id


-- name: hold_lane
-- Its chat takes nothing for a while: what is taken keeps everybody from its lane, and is first when the time has passed.
update notification n set attempts = $3, last_error = $4, taken_by = holding_claim(), taken_until = plane_now() + $5::interval
where n.id = $1 and n.taken_by = $2
returning n.id


-- name: insert_invitation
insert into notification (org_id, id, kind, connection_id, channel_type, mapping_id, user_account_id, address, data,
  next_attempt_at, created_at)
select $1, $2, 'invitation', c.id, c.channel_type, $4, $5, $6, $7, t.at, t.at
from channel_connection c cross join (select plane_now() as at) t
where c.id = $3
returning id


-- name: insert_prompt
insert into channel_prompt (org_id, connection_id, chat_id, message_ref, sender_id, data) values ($1, $2, $3, $4, $5, $6)
on conflict (org_id, connection_id, chat_id, message_ref) do update
  set sender_id = excluded.sender_id, data = excluded.data, created_at = plane_now()


-- name: is_card
select 1 from notification where connection_id = $1 and message_ref = $2 and kind = 'approval' limit 1


-- name: last_prompt
select message_ref, data from channel_prompt where connection_id = $1 and chat_id = $2 and sender_id = $3
order by created_at desc limit 1


-- name: list_deliveries
select n.id, n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, c.name as connection, n.user_account_id as member_id,
  coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward', n.data ->> 'place') as member, n.address, n.status, n.attempts, n.desired_version, n.rendered_version,
  case when n.status = 'pending' then greatest(n.next_attempt_at, c.paused_until, held_until(n)) end as next_attempt_at,
  n.last_error, n.message_ref, n.sent_at, n.created_at
from notification n
join channel_connection c on c.org_id = n.org_id and c.id = n.connection_id
left join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
where ($1::timestamptz is null or (n.created_at, n.id) < ($1, $2::uuid))
  and ($4::text is null or n.status = $4)
  and ($5::uuid is null or n.approval_id = $5)
order by n.created_at desc, n.id desc
limit $3


-- name: list_person_cards
-- Cards over a connection that this person got, or that stand in this place, the newest first; with a message, those alone that it is.
select n.id, n.approval_id from notification n
where n.connection_id = $1 and n.kind = 'approval' and ($2::text is null or n.message_ref = $2)
  and (n.user_account_id = $3 or (n.mapping_id is null and lower(n.address) = lower($4)))
order by n.created_at desc, n.id desc
limit $5


-- name: list_place_cards
-- Vendors do not tell Acme/Shop from acme/shop.
select n.id, n.shown from notification n
where n.connection_id = $1 and lower(n.address) = lower($2) and n.kind = 'approval' and n.mapping_id is null
order by n.created_at desc, n.id desc
limit $3


-- name: note_listener_error
update channel_listener set last_error = $4, updated_at = plane_now() where connection_id = $1 and owner_id = $2 and epoch = $3


-- name: open_deliveries
select n.id, n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, n.user_account_id as member_id, n.address, n.data,
  n.mapping_id, n.desired_version, n.rendered_version, n.message_ref, n.shown, n.said, n.tried_at, n.sent_at, n.attempts, n.created_at,
  c.name as connection, c.config, c.sealed as connection_sealed, c.disabled_at is not null as disabled,
  m.verified_at is not null as verified, m.removed_at is not null as removed, m.mac as mapping_mac, m.suppressed_reason, coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward', n.data ->> 'place') as member,
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
where n.id = any ($1::uuid[]) and n.taken_by = $2 and n.taken_until > (select plane_now())


-- name: postpone_delivery
-- Shared, so that whoever enables it at this moment is waited for: what they find put off they make due. For messages nobody is
-- waited for: whoever changes their requests makes them due, and what is left taken is free when its lease has run out.
with way as (select c.id, c.disabled_at from channel_connection c where c.id = $3 for share),
free as (
  select n.id from notification n
  where n.lane = $2 and n.taken_by = $1 and n.connection_id = $3
  for no key update skip locked)
update notification n
set taken_by = null, taken_until = null, last_error = $4,
  next_attempt_at = case when w.disabled_at is null then plane_now() else plane_now() + $5::interval end
from way w, free f
where n.lane = $2 and n.id = f.id


-- name: record_accepted
-- Locked before its connection, in the order of `record_deliveries`. What only tells how it ended is no news after a day; an agent that
-- waits for it is told however late.
select n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, n.mapping_id, n.user_account_id as member_id, n.created_at,
  coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward', n.data ->> 'place') as member, n.attempts, r.session_id, r.job_id,
  case when n.call_id is null then r.resolved_at end as resolved_at, plane_now() as now
from notification n
left join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
left join approval_request r on r.org_id = n.org_id and r.id = n.approval_id
where n.id = $1 and n.taken_by = $2
for no key update of n


-- name: record_part
update notification n
set message_ref = coalesce($3, n.message_ref), shown = $4, taken_until = greatest(n.taken_until, plane_now() + $5::interval)
where n.id = $1 and n.taken_by = $2
returning n.id


-- name: release_channel_events
update channel_event set taken_by = null, next_attempt_at = plane_now() where seq = any ($1::bigint[]) and taken_by = $2


-- name: release_deliveries
update notification set taken_by = null, taken_until = null where id = $1 and taken_by = $2


-- name: release_listener
update channel_listener set leased_until = plane_now(), updated_at = plane_now()
where connection_id = $1 and owner_id = $2 and epoch = $3


-- name: renew_lease
-- Whoever changes several requests waits for their messages one after the other: here nobody waits while holding one.
update notification n set taken_until = plane_now() + $3::interval
where n.lane = $2 and n.id in (
  select o.id from notification o
  where o.lane = $2 and o.taken_by = $1 and o.taken_until < plane_now() + $3::interval * 0.75
  for no key update skip locked)


-- name: repeat_card
-- What a message shows is shown again, whatever the channel thinks of it.
update notification n
set desired_version = n.desired_version + 1, status = 'pending', attempts = 0, next_attempt_at = plane_now(),
  data = n.data || jsonb_build_object('repeat', n.desired_version + 1)
where n.id = $1


-- name: repeat_open_cards
-- The messages of a connection are gone: nothing changes them any more, and those that still ask are sent anew.
with gone as (
  update notification n set message_ref = null, shown = '{}'
  where n.connection_id = $1 and not exists (
    select from approval_request r where r.org_id = n.org_id and r.id = n.approval_id and r.status = 'pending'))
update notification n
set desired_version = n.desired_version + 1, status = 'pending', attempts = 0, next_attempt_at = plane_now(), message_ref = null,
  shown = '{}', said = '{}', data = n.data || jsonb_build_object('repeat', n.desired_version + 1)
from approval_request r
where n.connection_id = $1 and n.kind = 'approval' and r.org_id = n.org_id and r.id = n.approval_id and r.status = 'pending'


-- name: report_undelivered
with dead as (
  update notification n set status = 'dead', last_error = $3, next_attempt_at = null
  where n.org_id = $4 and n.connection_id = $1 and n.message_ref = $2 and n.status = 'delivered'
    and n.created_at > plane_now() - interval '30 days'
  returning n.*)
select n.id, n.kind, n.approval_id, n.call_id, n.channel_type, n.connection_id, n.mapping_id, n.user_account_id as member_id,
  coalesce(u.display_name, n.data ->> 'agent', n.data ->> 'steward', n.data ->> 'place') as member, r.session_id, r.job_id
from dead n
left join user_account u on u.org_id = n.org_id and u.id = n.user_account_id
left join approval_request r on r.org_id = n.org_id and r.id = n.approval_id


-- name: resend_delivery
update notification n
set status = 'pending', attempts = 0, next_attempt_at = plane_now(),
  desired_version = greatest(n.desired_version, n.rendered_version + 1)
from (select p.org_id, p.id, a.session_id, a.job_id from notification p
  left join approval_request a on a.org_id = p.org_id and a.id = p.approval_id where p.id = $1) r
where n.org_id = r.org_id and n.id = r.id and n.status = 'dead'
returning r.session_id, r.job_id


-- name: reset_failures
update channel_mapping m set suppressed_at = null, suppressed_reason = null
from notification n
where n.id = $1 and m.org_id = n.org_id and m.id = n.mapping_id and m.suppressed_at is not null
returning m.id


-- name: retry_channel_event
update channel_event set taken_by = null, next_attempt_at = plane_now() + $3::interval, last_error = $4 where seq = $1 and taken_by = $2


-- name: retry_delivery
-- $6: how long it is put off; null where its whole connection waits: then it keeps its place before what is behind it in its lane.
update notification n
set attempts = $4, last_error = $5, taken_by = null, taken_until = null,
  next_attempt_at = case when $6::interval is null then least(n.next_attempt_at, plane_now())
    when n.desired_version > $3 then plane_now() else plane_now() + $6::interval end
where n.id = $1 and n.taken_by = $2
returning n.id


-- name: store_channel_events
insert into channel_event (org_id, connection_id, event_id, lane, payload)
select $1, $2, e.id, hashtextextended($2::uuid::text || e.chat, 4), e.payload
from unnest($3::text[], $4::text[], $5::jsonb[]) with ordinality e (id, chat, payload, n)
order by e.n
on conflict do nothing
returning seq


-- name: suppress_delivery
update channel_mapping set suppressed_at = plane_now(), suppressed_reason = $2
where id = $1 and suppressed_at is null
returning id


-- name: upsert_chat
-- In a transaction of its own. The message that comes after it flushes the log.
insert into channel_chat (org_id, id, connection_id, chat_id, sender_id, thread) values ($1, $2, $3, $4, $5, $6)
on conflict (org_id, connection_id, chat_id, sender_id) do update set thread = excluded.thread, updated_at = plane_now()
returning id, agent_id, set_config('synchronous_commit', 'off', true)
