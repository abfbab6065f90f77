-- name: allow_mail
update channel_mapping set suppressed_at = null, suppressed_reason = null
where id = $1 and suppressed_at is not null


-- name: claim_one
select pg_advisory_xact_lock(hashtextextended($1::uuid::text || ':' || $2::text, 0))


-- name: claims
-- Whoever says, or has proven, that this address is theirs.
select m.id, m.user_account_id, m.verified_at, u.display_name, u.deactivated_at, u.roles = '{guest}' as is_guest,
  coalesce(m.metadata ->> 'purpose' = 'invitation', false) as invited
from channel_mapping m join user_account u on u.org_id = m.org_id and u.id = m.user_account_id
where m.org_id = $1 and m.connection_id = $2 and m.channel_user_id = $3 and m.removed_at is null
order by m.verified_at is null, m.created_at, m.id


-- name: count_mails
select count(*) from notification n
where n.org_id = $1 and n.created_at > (select plane_now()) - interval '1 hour' and n.kind = 'invitation' and n.data @> $2


-- name: count_mappings
select count(*) from channel_mapping where user_account_id = $1 and removed_at is null


-- name: email_connection
-- Where the org's mail goes out; the oldest, where there are several.
select id, channel_type, name, disabled_at from channel_connection
where channel_type = 'email'
order by disabled_at is not null, created_at, id
limit 1


-- name: ensure_email_connection
insert into channel_connection (org_id, id, channel_type, name) values ($1, $2, 'email', 'email')
on conflict (org_id, channel_type, name) do nothing
returning id


-- name: forget_codes
-- What is over and a day old, so that the table stays small.
delete from identity_code where user_account_id = $1 and expires_at < plane_now() - interval '1 day'


-- name: forget_guesses
delete from identity_guess where org_id = $1 and connection_id = $2 and forget_at <= (select plane_now())


-- name: get_mapping
select id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, created_at
from channel_mapping
where id = $1 and removed_at is null


-- name: guessed_wrong
insert into identity_guess as g (org_id, connection_id, sender, wrong, forget_at)
values ($1, $2, $3, 1, plane_now() + $4::interval)
on conflict (org_id, connection_id, sender) do update
set wrong = case when g.forget_at > plane_now() then g.wrong + 1 else 1 end,
    forget_at = case when g.forget_at > plane_now() then g.forget_at else excluded.forget_at end
returning wrong


-- name: insert_code
insert into identity_code (org_id, id, user_account_id, mapping_id, code_hash, purpose, issued_by, expires_at, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)


-- name: insert_mapping
insert into channel_mapping (
  org_id, id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, proven_at, mac)
select $1, $2, c.id, $4, c.channel_type, $5, $6, case when $7::boolean then plane_now() end,
  case when $7 then plane_now() end, $8
from channel_connection c where c.org_id = $1 and c.id = $3


-- name: is_mailed
-- A mail is on its way to this address of this member, or has just arrived.
select exists (
  select from notification n
  where n.org_id = $1 and n.mapping_id = $2 and n.kind = 'invitation'
    and (n.status = 'pending' or n.sent_at > (select plane_now()) - $3::interval))


-- name: refusal
-- Why this address took no mail, from this member's mappings to it; those that they gave up count too.
select m.suppressed_reason from channel_mapping m
where m.org_id = $1 and m.connection_id = $2 and m.channel_user_id = $3 and m.user_account_id = $4
  and m.suppressed_at is not null
order by m.suppressed_at desc limit 1


-- name: remove
update channel_mapping set removed_at = plane_now(), verified_at = null
where id = $1 and removed_at is null
returning id


-- name: show_code
-- What a link would do now; nothing where it was used, is too old, or is not wanted any more.
select c.id, c.purpose, c.issued_by, c.user_account_id, m.id as mapping_id, m.connection_id, m.channel_user_id as address,
  u.display_name as member, o.name as org, c.org_id, c.expires_at, c.code_hash, c.mac
from identity_code c
join channel_mapping m on m.org_id = c.org_id and m.id = c.mapping_id
join user_account u on u.org_id = c.org_id and u.id = c.user_account_id
join org o on o.id = c.org_id
where c.id = $1 and c.used_at is null and c.expires_at > plane_now() and u.deactivated_at is null
  and m.removed_at is null and m.verified_at is null


-- name: use_codes
-- Every link that was sent for this mapping: a mail that came twice works once.
update identity_code set used_at = plane_now() where mapping_id = $1 and used_at is null


-- name: use_sender_code
update identity_code c set used_at = plane_now()
from user_account u
where c.org_id = $1 and c.code_hash = $2 and c.purpose = 'sender' and c.used_at is null and c.expires_at > plane_now()
  and u.org_id = c.org_id and u.id = c.user_account_id and u.deactivated_at is null
returning c.org_id, c.id, c.user_account_id, c.mapping_id, c.purpose, c.expires_at, c.code_hash, c.mac, u.display_name


-- name: verify
-- An address that took no mail before takes it now: its link was just opened.
update channel_mapping set verified_at = coalesce(verified_at, plane_now()), proven_at = coalesce(proven_at, plane_now()),
  suppressed_at = null, suppressed_reason = null, mac = $5
where id = $1 and connection_id = $2 and user_account_id = $3 and channel_user_id = $4 and removed_at is null
returning verified_at


-- name: void_codes
delete from identity_code where user_account_id = $1 and used_at is null
returning id


-- name: void_sender_codes
-- Only the newest works.
delete from identity_code where user_account_id = $1 and purpose = 'sender' and used_at is null


-- name: wrong_guesses
select wrong from identity_guess
where org_id = $1 and connection_id = $2 and sender = $3 and forget_at > (select plane_now())
