-- name: stream_api_keys
select org_id, id, user_account_id, kind, roles, permissions, platform, readable_time(expires_at) as expires_at, secret_hash, mac,
  revoked_at is null as live
from api_key where not $1::boolean or mac is null order by id limit $2


-- name: stream_approval_tokens
select org_id, id, user_account_id, approval_id, version, encode(input_hash, 'hex') as input_hash, readable_time(expires_at) as expires_at, token_hash, mac,
  used_at is null as live
from approval_token where not $1::boolean or mac is null order by id limit $2


-- name: stream_atlas_versions
select org_id, atlas_id, version, number, digest, access, api_keys, retired_at is not null as retired, mac
from atlas_version where not $1::boolean or mac is null order by atlas_id, number limit $2


-- name: stream_browser_sessions
select org_id, id, user_account_id, key_id, readable_time(expires_at) as expires_at, secret_hash, mac,
  true as live
from browser_session where not $1::boolean or mac is null order by id limit $2


-- name: stream_enrolment_codes
select org_id, id, user_account_id, issuer_id, key_id, readable_time(expires_at) as expires_at, code_hash, mac,
  used_at is null as live
from enrolment_code where not $1::boolean or mac is null order by id limit $2


-- name: stream_identity_codes
select org_id, id, user_account_id, mapping_id, purpose, readable_time(expires_at) as expires_at, code_hash, mac,
  used_at is null as live
from identity_code where not $1::boolean or mac is null order by id limit $2


-- name: is_converted
select converted_at is not null from credential_key


-- name: stream_login_links
select org_id, id, user_account_id, key_id, readable_time(expires_at) as expires_at, secret_hash, mac,
  used_at is null as live
from login_link where not $1::boolean or mac is null order by id limit $2


-- name: stream_mappings
select org_id, id, connection_id, channel_user_id, user_account_id, verified_at is not null as verified, mac, true as live
from channel_mapping where removed_at is null and (not $1::boolean or mac is null) order by id limit $2


-- name: database_time
select plane_now()


-- name: reseal_credential_key
update credential_key set sealed = $1


-- name: list_sealed_values
select 'signing_key' as kind, id::text as id, 'signing-key' as purpose, sealed from signing_key
union all
select 'signing_secret', id::text, purpose, sealed from signing_secret
union all
select 'model_key', provider, 'model key ' || provider, sealed from model_key
union all
select 'channel_connection', id::text, 'connection/' || id, sealed from channel_connection where sealed is not null


-- name: reseal_values
with value as (select * from unnest($1::text[], $2::text[], $3::bytea[]) as v (kind, id, sealed)),
  signing_keys as (
    update signing_key t set sealed = v.sealed from value v where v.kind = 'signing_key' and t.id::text = v.id),
  signing_secrets as (
    update signing_secret t set sealed = v.sealed from value v where v.kind = 'signing_secret' and t.id::text = v.id),
  model_keys as (
    update model_key t set sealed = v.sealed from value v where v.kind = 'model_key' and t.provider = v.id)
update channel_connection t set sealed = v.sealed from value v where v.kind = 'channel_connection' and t.id::text = v.id


-- name: sealed_credential_key
select sealed from credential_key


-- name: set_converted
update credential_key set converted_at = plane_now() where converted_at is null


-- name: sign_atlases
update atlas_version a set mac = g.mac from unnest($1::text[], $2::text[], $3::bytea[]) as g (atlas_id, version, mac)
where a.atlas_id = g.atlas_id and a.version = g.version and a.mac is null


-- name: sign_mappings
update channel_mapping m set mac = g.mac from unnest($1::uuid[], $2::bytea[]) as g (id, mac)
where m.id = g.id and m.mac is null


-- name: unsigned_policies
select version from policy_version where mac is null order by version limit 20


-- name: unsigned_policy_version
select policy_version from org where id = $1 and policy_mac is null


-- name: get_key
select id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at
from api_key where id = $1


-- name: insert_key
insert into api_key (
  org_id, id, name, kind, user_account_id, roles, platform, secret_hash, last_characters, expires_at, made_with,
  permissions, owner_id, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, person_behind($1, $13), $14)
returning id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at


-- name: list_keys
select id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at
from api_key
where ($1::timestamptz is null or (created_at, id) < ($1, $2::uuid))
  and ($4::uuid is null or user_account_id = $4)
order by created_at desc, id desc
limit $3


-- name: key_maker
-- The member who made this key, with a key of theirs or in a browser.
select coalesce(k.owner_id, m.user_account_id) from api_key k left join api_key m on m.id = k.made_with where k.id = $1


-- name: key_origin
-- The key behind a credential: itself, or the one that a browser session came from; none behind a session that a mail opened.
select coalesce(s.key_id, k.id) as key_id, o.id is null or o.revoked_at is null
    and (o.expires_at is null or o.expires_at > plane_now()) as works
from (select $1::uuid as id) given
left join browser_session s on s.id = given.id
left join api_key k on k.id = given.id
left join api_key o on o.id = coalesce(s.key_id, k.id)
where s.id is not null or k.id is not null


-- name: revoke_key
-- The key, and every key of a person that was made with it, however far down. Keys of services stay: they are the org's.
with recursive ended as (
  select id from api_key where id = $1
  union
  select k.id from api_key k join ended e on k.made_with = e.id and k.kind = 'person'
)
update api_key k set revoked_at = plane_now()
from ended e
where k.id = e.id and k.revoked_at is null
returning k.id


-- name: revoke_keys
update api_key set revoked_at = plane_now() where user_account_id = $1 and revoked_at is null
returning id


-- name: delete_session
delete from browser_session where id = $1 returning id


-- name: end_links
delete from login_link where user_account_id = $1 and used_at is null
returning id


-- name: end_links_of_keys
delete from login_link where key_id = any ($1::uuid[]) and used_at is null


-- name: end_sessions_of_keys
delete from browser_session where key_id = any ($1::uuid[]) returning id


-- name: end_session
delete from browser_session where id = $1 and user_account_id = $2 returning id


-- name: end_sessions
delete from browser_session where user_account_id = $1 and ($2::uuid is null or id <> $2) returning id


-- name: forget_links
-- What is over and a day old, so that the table stays small.
delete from login_link where user_account_id = $1 and expires_at < plane_now() - interval '1 day'


-- name: forget_sessions
delete from browser_session
where user_account_id = $1 and (expires_at <= plane_now() or last_seen_at + $2::interval <= plane_now())


-- name: insert_session
insert into browser_session (org_id, id, user_account_id, secret_hash, expires_at, key_id, mac)
values ($1, $2, $3, $4, $5, $6, $7)


-- name: insert_link
insert into login_link (org_id, id, user_account_id, secret_hash, expires_at, issued_by, key_id, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: link_holder
select u.display_name, l.org_id, l.id, l.user_account_id, l.key_id, l.expires_at, l.secret_hash, l.mac
from login_link l join user_account u on u.id = l.user_account_id
where l.id = $1 and l.used_at is null and l.expires_at > plane_now() and u.deactivated_at is null
  and (l.key_id is null or exists (
    select from api_key k where k.id = l.key_id and k.revoked_at is null
      and (k.expires_at is null or k.expires_at > plane_now())))


-- name: link_member
select org_id, id, user_account_id, key_id, expires_at, secret_hash, mac from login_link where id = $1


-- name: list_sessions
-- Those that still work, with the moment at which they end where nobody visits any more.
select s.id, s.user_account_id as member_id, s.key_id, k.name as key_name, s.created_at, s.last_seen_at,
  least(s.expires_at, s.last_seen_at + $5::interval, k.expires_at) as expires_at
from browser_session s left join api_key k on k.id = s.key_id
where s.user_account_id = $4 and s.expires_at > plane_now() and s.last_seen_at + $5::interval > plane_now()
  and k.revoked_at is null and (k.expires_at is null or k.expires_at > plane_now())
  and ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
order by s.created_at desc, s.id desc
limit $3


-- name: use_link
-- One of two that come at the same instant waits for the other's row, and then finds it used.
update login_link l set used_at = plane_now()
from user_account u
where l.id = $1 and l.used_at is null and l.expires_at > plane_now()
  and u.id = l.user_account_id and u.deactivated_at is null
  and (l.key_id is null or exists (
    select from api_key k where k.id = l.key_id and k.revoked_at is null
      and (k.expires_at is null or k.expires_at > plane_now())))
returning u.id, u.display_name, u.roles, u.clearance, l.issued_by, l.key_id


-- name: end_enrolment_codes_of_keys
delete from enrolment_code where key_id = any ($1::uuid[]) and used_at is null
returning id


-- name: insert_enrolment_code
insert into enrolment_code (org_id, id, user_account_id, code_hash, issuer_id, issued_by, key_id, expires_at, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)


-- name: show_enrolment_code
-- What a code would do now; nothing where it was used, is too old, or its person is deactivated.
select c.id, c.user_account_id as member_id, u.display_name as member, o.name as org, c.issued_by,
  c.org_id, c.user_account_id, c.issuer_id, c.key_id, c.expires_at, c.code_hash, c.mac
from enrolment_code c
join user_account u on u.org_id = c.org_id and u.id = c.user_account_id
join org o on o.id = c.org_id
where c.id = $1 and c.used_at is null and c.expires_at > plane_now() and u.deactivated_at is null


-- name: use_enrolment_code
-- One of two that come at the same instant waits for the other's row, and then finds it used.
update enrolment_code set used_at = plane_now()
where id = $1 and used_at is null and expires_at > plane_now()
returning issuer_id


-- name: void_enrolment_codes
-- Only the newest works, and what is over goes with it.
delete from enrolment_code where user_account_id = $1 and (used_at is null or expires_at < plane_now() - interval '1 day')
returning id


-- name: get_model_key
select provider, last_characters, set_by, created_at, updated_at from model_key where provider = $1


-- name: list_model_keys
select provider, last_characters, set_by, created_at, updated_at from model_key order by provider


-- name: open_model_key
select sealed from model_key where provider = $1


-- name: put_model_key
insert into model_key (org_id, provider, sealed, last_characters, set_by)
values ($1, $2, $3, $4, $5)
on conflict (org_id, provider) do update
set sealed = excluded.sealed, last_characters = excluded.last_characters, set_by = excluded.set_by, updated_at = plane_now()
returning provider, last_characters, set_by, created_at, updated_at


-- name: remove_model_key
delete from model_key where provider = $1 returning last_characters


-- name: add_set_up
update channel_connection set set_up_by = set_up_by || $2::uuid where id = $1 and not $2 = any (set_up_by)


-- name: find_agent
select id from agent where id = $1 or slug = $2


-- name: get_connection
select id, channel_type, name, config ->> 'url' as url, config - 'url' as config, agent_id, account, to_do, checked_at, failing_since,
  disabled_at, disabled_reason, revision, created_at, updated_at, last_inbound_at, last_outbound_at,
  case when paused_until > (select plane_now()) then paused_until end as paused_until, pause_reason
from channel_connection where id = $1


-- name: give_up_connection
-- What waits for its next try failed within the last day, which is the longest that a webhook waits. Without such a one
-- nothing was sent lately, or nobody could: then nobody knows whether it would still fail.
update channel_connection c
set disabled_at = plane_now(), disabled_reason = $2, revision = c.revision + 1, updated_at = plane_now()
where c.id = $1 and c.disabled_at is null and c.failing_since <= plane_now() - $3::interval
  and exists (
    select from notification n
    where n.org_id = c.org_id and n.connection_id = c.id and n.status = 'pending' and n.last_error is not null
      -- Or its receiver asked for a pause, for which a message keeps its tries.
      and (n.attempts > 0 and n.next_attempt_at > plane_now() or c.paused_until > plane_now()))
returning c.name, c.failing_since


-- name: insert_connection
insert into channel_connection (
  org_id, id, channel_type, name, config, sealed, agent_id, account, external_id, to_do, checked_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, case when $9::text is not null then plane_now() end)


-- name: connection_health
-- Of every connection of the org over which something waits or was given up, or to which nobody can listen; bounded, newest first.
select o.connection_id, count(*) filter (where o.status = 'pending') as waiting,
  count(*) filter (where o.is_uncertain) as uncertain, count(*) filter (where o.status = 'dead') as given_up,
  (array_agg(o.last_error order by o.created_at desc) filter (where o.last_error is not null))[1] as last_error
from (
  (select n.connection_id, n.status, n.last_error, n.created_at,
     n.attempts > 0 and n.taken_by <> holding_claim() and n.taken_until < (select plane_now()) as is_uncertain
   from notification n where n.org_id = $1 and n.status = 'pending' order by n.created_at desc, n.id desc limit 10000)
  union all
  (select n.connection_id, n.status, n.last_error, n.created_at, false
   from notification n
   where n.org_id = $1 and n.status = 'dead' and n.created_at > (select plane_now()) - interval '7 days'
   order by n.created_at desc, n.id desc limit 10000)
  union all
  -- Whoever cannot listen notes it with every try. What is older is over.
  (select l.connection_id, 'listening', l.last_error, l.updated_at, false
   from channel_listener l
   where l.org_id = $1 and l.last_error is not null and l.updated_at > (select plane_now()) - interval '10 minutes')) o
group by o.connection_id


-- name: find_same_account
-- Another connection of the org to the same bot, app or number.
select name from channel_connection
where channel_type = $1 and external_id = $2 and id <> $3 and disabled_at is null
limit 1


-- name: is_connection_name_taken
select exists (select from channel_connection where channel_type = $1 and name = $2)


-- name: peek_idempotency_key
-- Whether a request with this key was answered before.
select exists (select from idempotency where org_id = $1 and caller_id = $2 and verb = $3 and key = $4 and result is not null)


-- name: list_connections
select id, channel_type, name, config ->> 'url' as url, config - 'url' as config, agent_id, account, to_do, checked_at, failing_since,
  disabled_at, disabled_reason, revision, created_at, updated_at, last_inbound_at, last_outbound_at,
  case when paused_until > (select plane_now()) then paused_until end as paused_until, pause_reason
from channel_connection
where $1::timestamptz is null or (created_at, id) < ($1, $2::uuid)
order by created_at desc, id desc
limit $3


-- name: lock_connection
select id, channel_type, name, config, sealed, disabled_at, plane_now() as now from channel_connection where id = $1
for no key update


-- name: list_mappings
select id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, last_used_at, created_at,
  verified_at is not null and channel_type = any (vouched_channels()) and account_proven_at is null as vouched
from channel_mapping
where ($1::timestamptz is null or (created_at, id) < ($1, $2::uuid)) and user_account_id = $4 and removed_at is null
  and (verified_at is not null or asked_at is null or asked_at > (select plane_now()) - $5::interval)
order by created_at desc, id desc
limit $3


-- name: get_connection_name
-- By its id or its name. A name is given once for each kind of channel: a webhook comes first.
select id, channel_type, name, config, sealed, disabled_at, plane_now() as now
from channel_connection where name = $1 or id::text = lower($1)
order by channel_type = 'webhook' desc, id::text = lower($1) desc
limit 1


-- name: reseal_connection
update channel_connection set sealed = $2, revision = revision + 1, updated_at = plane_now() where id = $1


-- name: sealed_connection
select id, channel_type, name, config, sealed, disabled_at, plane_now() as now from channel_connection where id = $1


-- name: update_connection
update channel_connection
set name = coalesce($2, name),
    config = jsonb_strip_nulls(config || $5::jsonb), sealed = coalesce($6, sealed), agent_id = coalesce($7, agent_id),
    account = coalesce($8, account), external_id = coalesce($9, external_id), to_do = coalesce($10, to_do),
    checked_at = case when $9::text is not null then plane_now() else checked_at end,
    disabled_at = case
      when $3::boolean is null then disabled_at
      when $3 then null
      else coalesce(disabled_at, plane_now())
    end,
    -- Whoever enables it wants it tried anew, from the first failure on.
    disabled_reason = case when $3 then null else disabled_reason end,
    failing_since = case when $3 or $9::text is not null then null else failing_since end,
    failures = case when $3 or $9::text is not null then 0 else failures end,
    paused_until = case when $3 or $9::text is not null then null else paused_until end,
    revision = revision + 1, updated_at = plane_now()
where id = $1 and ($4::integer is null or revision = $4)
returning id


-- name: verified_mapping
select org_id, id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, created_at,
  verified_at is not null as verified, mac
from channel_mapping where connection_id = $1 and channel_user_id = $2 and verified_at is not null


-- name: allow_mail
update channel_mapping set suppressed_at = null, suppressed_reason = null
where id = $1 and suppressed_at is not null


-- name: claim_one
-- Transactions that settle the same sender take turns, first messages included; no others wait.
select pg_advisory_xact_lock(hashtextextended($1::uuid::text || ':' || $2::text, 0))


-- name: adopt_guest
select adopt_guest($1, $3, $4, (select c.channel_type <> 'email' from channel_connection c where c.org_id = $1 and c.id = $2))


-- name: insert_claim
insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, metadata, asked_at, mac)
select $1, $2, c.id, $4, c.channel_type, $5, $6, plane_now(), $7
from channel_connection c where c.org_id = $1 and c.id = $3


-- name: renew_claim
update channel_mapping set metadata = metadata || $2, asked_at = plane_now() where id = $1 and verified_at is null


-- name: list_claims
select m.id, m.connection_id, c.name as connection, m.channel_type, m.channel_user_id, m.metadata ->> 'name' as name, m.asked_at,
  m.asked_at + $2::interval as expires_at
from channel_mapping m join channel_connection c on c.org_id = m.org_id and c.id = m.connection_id
where m.user_account_id = $1 and m.removed_at is null and m.verified_at is null
  and m.asked_at > (select plane_now()) - $2::interval
order by m.asked_at desc, m.id
limit 100


-- name: list_linkable
select id, channel_type, name, account from channel_connection
where disabled_at is null and account is not null and channel_type <> all (public_channels())
order by channel_type, name, id
limit 50


-- name: end_claim
update channel_mapping set removed_at = plane_now()
where id = $1 and user_account_id = $2 and verified_at is null and asked_at is not null and removed_at is null
returning id


-- name: note_use
-- At most once an hour, so that a message costs no write of its own. What could not be sent to them before may arrive now. $2: who is
-- behind the sender's id, where the vendor says so; a mapping from before it did learns it now.
update channel_mapping
set last_used_at = plane_now(), suppressed_at = null, suppressed_reason = null,
  metadata = case when $2::text is null or metadata ? 'owner' then metadata else metadata || jsonb_build_object('owner', $2::text) end
where id = $1 and (last_used_at is null or last_used_at < plane_now() - interval '1 hour' or suppressed_at is not null
  or $2::text is not null and not metadata ? 'owner')


-- name: note_inbound
-- At most once a minute, for the same reason.
update channel_connection set last_inbound_at = plane_now()
where id = $1 and (last_inbound_at is null or last_inbound_at < plane_now() - interval '1 minute')


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
-- A claim that nobody confirmed in time takes no place.
select count(*) from channel_mapping
where user_account_id = $1 and removed_at is null
  and (verified_at is not null or asked_at is null or asked_at > (select plane_now()) - $2::interval)


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
select id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, last_used_at, created_at,
  verified_at is not null and channel_type = any (vouched_channels()) and account_proven_at is null as vouched
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


-- name: mapping_refusal
-- Why this address took no mail, from this member's mappings to it; those that they gave up count too.
select m.suppressed_reason from channel_mapping m
where m.org_id = $1 and m.connection_id = $2 and m.channel_user_id = $3 and m.user_account_id = $4
  and m.suppressed_at is not null
order by m.suppressed_at desc limit 1


-- name: remove_mapping
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


-- name: find_claim_of_code
-- What this sender has from a code that was used: an event that is handled again, or somebody who sends it twice.
select m.id
from identity_code c
join channel_mapping m on m.org_id = c.org_id and m.user_account_id = c.user_account_id
where c.org_id = $1 and c.code_hash = $2 and c.purpose = 'sender' and c.used_at is not null and c.expires_at > plane_now()
  and m.connection_id = $3 and m.channel_user_id = $4 and m.removed_at is null


-- name: verify_mapping
-- An address that took no mail before takes it now: its link was just opened.
update channel_mapping set verified_at = coalesce(verified_at, plane_now()), proven_at = coalesce(proven_at, plane_now()),
  suppressed_at = null, suppressed_reason = null, mac = $5
where id = $1 and connection_id = $2 and user_account_id = $3 and channel_user_id = $4 and removed_at is null
returning verified_at


-- name: note_voucher
update channel_mapping set vouched_by = vouched_by || $2::uuid where id = $1 and not $2 = any (vouched_by)


-- name: note_account
-- Its member logged in with this account, which the vendor calls so now.
update channel_mapping
set account_proven_at = coalesce(account_proven_at, plane_now()), metadata = metadata || $2
where id = $1 and removed_at is null


-- name: list_linkable_accounts
select id, channel_type, name, account from channel_connection
where disabled_at is null and channel_type = any ($1::text[]) and config ? 'client_id'
order by channel_type, name, id
limit 50


-- name: forget_account_links
delete from account_link where user_account_id = $1 and expires_at < plane_now()


-- name: begin_account_link
-- The newest of a browser session counts.
insert into account_link (org_id, id, connection_id, user_account_id, session_id, state_hash, expires_at, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (org_id, session_id, connection_id) do update
set id = excluded.id, user_account_id = excluded.user_account_id, state_hash = excluded.state_hash, answered_at = null, account_id = null,
  login = null, expires_at = excluded.expires_at, created_at = plane_now(), mac = excluded.mac


-- name: open_account_link
-- Of this browser session; what is too old is not there.
select l.org_id, l.id, l.connection_id, l.user_account_id, l.session_id, l.state_hash, l.answered_at, l.account_id, l.login, l.expires_at,
  l.mac, c.channel_type, c.name as connection
from account_link l join channel_connection c on c.org_id = l.org_id and c.id = l.connection_id
where l.connection_id = $1 and l.session_id = $2 and l.user_account_id = $3 and l.expires_at > plane_now() and c.disabled_at is null
for update of l


-- name: answer_account_link
update account_link set answered_at = plane_now() where id = $1 and answered_at is null returning id


-- name: name_account
update account_link set account_id = $2, login = $3, mac = $4 where id = $1 and answered_at is not null and account_id is null
returning id


-- name: end_account_link
delete from account_link where id = $1 returning id


-- name: void_codes
delete from identity_code where user_account_id = $1 and used_at is null
returning id


-- name: void_sender_codes
-- Only the newest works.
delete from identity_code where user_account_id = $1 and purpose = 'sender' and used_at is null


-- name: wrong_guesses
select wrong from identity_guess
where org_id = $1 and connection_id = $2 and sender = $3 and forget_at > (select plane_now())


-- name: get_org
select id, slug, name, settings, revision, created_at, updated_at from org


-- name: insert_org
with made as (
  insert into org (id, slug, name, settings, policy_mac) values ($1, $2, $3, $4, $5)
  returning id, slug, name, settings, revision, created_at, updated_at
), head as (
  insert into org_head (org_id) values ($1)
)
select * from made


-- name: update_org
update org
set name = coalesce($2, name), settings = settings || coalesce($3::jsonb, '{}'), revision = revision + 1,
    updated_at = plane_now()
where $1::integer is null or revision = $1
returning id, slug, name, settings, revision, created_at, updated_at


-- name: delete_team
delete from team where id = $1 returning id


-- name: find_teams
-- The ids of several teams, each named by id or slug.
select id, slug from team where id = any ($1::uuid[]) or slug = any ($2::text[])


-- name: get_team
select id, slug, name, parent_id, revision, created_at, updated_at from team where id = $1 or slug = $2


-- name: insert_team
insert into team (org_id, id, slug, name, parent_id) values ($1, $2, $3, $4, $5)
returning id, slug, name, parent_id, revision, created_at, updated_at


-- name: list_teams
select id, slug, name, parent_id, revision, created_at, updated_at from team
where $1::timestamptz is null or (created_at, id) < ($1, $2::uuid)
order by created_at desc, id desc
limit $3


-- name: update_team
update team set name = $3, revision = revision + 1, updated_at = plane_now()
where id = $1 and ($2::integer is null or revision = $2)
returning id, slug, name, parent_id, revision, created_at, updated_at


-- name: team_usage
select (select count(*) from agent where team_id = $1) as agents,
  (select count(*) from team where parent_id = $1) as teams


-- name: add_sponsor
update user_account set sponsors = sponsors || $2::uuid where id = $1 and id <> $2 and not $2 = any (sponsors)


-- name: first_admin
select id from user_account where 'admin' = any (roles) and deactivated_at is null
order by created_at, id
limit 1


-- name: get_member
select u.id, u.display_name, u.clearance, u.roles, u.deactivated_at, u.revision, u.created_at, u.updated_at,
  array(select t.team_id from team_member t where t.user_account_id = u.id order by t.created_at, t.team_id)
    as team_ids
from user_account u where u.id = $1


-- name: has_proven_channel
select has_proven_channel($1, $2, 'infinity')


-- name: hold_access
-- Whoever makes or ends a credential of this member waits here for the others who do.
select pg_advisory_xact_lock(hashtextextended($1::uuid::text || ':access', 0))


-- name: insert_member
insert into user_account (org_id, id, display_name, clearance, roles, sponsors) values ($1, $2, $3, $4, $5, $6)


-- name: join_teams
insert into team_member (org_id, team_id, user_account_id)
select $1, wanted, $2 from unnest($3::uuid[]) as wanted


-- name: leave_teams
delete from team_member where user_account_id = $1


-- name: list_members
select u.id, u.display_name, u.clearance, u.roles, u.deactivated_at, u.revision, u.created_at, u.updated_at,
  array(select t.team_id from team_member t where t.user_account_id = u.id order by t.created_at, t.team_id)
    as team_ids
from user_account u
where ($1::timestamptz is null or (u.created_at, u.id) < ($1, $2::uuid))
  and ($4::text is null or $4 = any (u.roles))
order by u.created_at desc, u.id desc
limit $3


-- name: lock_with_admins
-- The member and every active admin, held still in one order: an org must keep an admin, whoever changes whom.
select id, revision, roles, clearance, 'admin' = any (roles) and deactivated_at is null as is_admin from user_account
where id = $1 or (roles <> '{guest}' and 'admin' = any (roles) and deactivated_at is null)
order by id
for no key update


-- name: update_member
update user_account
set display_name = coalesce($2, display_name), clearance = coalesce($3, clearance), roles = coalesce($4, roles),
    deactivated_at = case
      when $5::boolean is null then deactivated_at
      when $5 then null
      else coalesce(deactivated_at, plane_now())
    end,
    access_ended_at = case when $5 is false then plane_now() else access_ended_at end,
    revision = revision + 1, updated_at = plane_now()
where id = $1


-- name: cancel_absence
update member_absence set cancelled_at = plane_now()
where id = $1 and cancelled_at is null and ends_at > (select plane_now())
returning id


-- name: get_absence
select a.id, a.user_account_id as member_id, u.display_name as member, a.delegate_id, d.display_name as delegate,
  a.starts_at, a.ends_at, a.reason, a.cancelled_at, a.created_by, a.created_at,
  case
    when a.cancelled_at is not null then 'cancelled'
    when a.ends_at <= (select plane_now()) then 'over'
    when a.starts_at <= (select plane_now()) then 'current'
    else 'planned'
  end as status
from member_absence a
join user_account u on u.org_id = a.org_id and u.id = a.user_account_id
join user_account d on d.org_id = a.org_id and d.id = a.delegate_id
where a.id = $1 and ($2::uuid is null or a.user_account_id = $2)


-- name: hold_people
-- Whoever is absent and whoever stands in, held as they are while it is written; in one order, as members are locked.
select id, display_name, roles, deactivated_at, plane_now() as now from user_account
where id = any ($1::uuid[])
order by id
for share


-- name: insert_absence
insert into member_absence (org_id, id, user_account_id, delegate_id, starts_at, ends_at, reason, created_by)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: list_absences
select a.id, a.user_account_id as member_id, u.display_name as member, a.delegate_id, d.display_name as delegate,
  a.starts_at, a.ends_at, a.reason, a.cancelled_at, a.created_by, a.created_at,
  case
    when a.cancelled_at is not null then 'cancelled'
    when a.ends_at <= (select plane_now()) then 'over'
    when a.starts_at <= (select plane_now()) then 'current'
    else 'planned'
  end as status
from member_absence a
join user_account u on u.org_id = a.org_id and u.id = a.user_account_id
join user_account d on d.org_id = a.org_id and d.id = a.delegate_id
where ($1::timestamptz is null or (a.created_at, a.id) < ($1, $2::uuid))
  and ($4::uuid is null or a.user_account_id = $4)
  and (not $5::boolean or a.cancelled_at is null and a.ends_at > (select plane_now()))
order by a.created_at desc, a.id desc
limit $3


-- name: lock_absences
-- Two absences of different people can close a circle together, so that an org makes one at a time.
select pg_advisory_xact_lock(hashtextextended($1::uuid::text, 3))


-- name: count_overlapping_absences
select count(*) from member_absence
where user_account_id = $1 and cancelled_at is null and starts_at < $3 and ends_at > $2


-- name: list_delegates_absent
-- The absences that somebody's delegate leads to within a span, hop by hop.
with recursive reached as (
  select a.org_id, a.id, a.user_account_id as member_id, a.delegate_id, a.starts_at, a.ends_at
  from member_absence a
  where a.user_account_id = $1 and a.cancelled_at is null and a.starts_at < $3 and a.ends_at > $2
  union
  select a.org_id, a.id, a.user_account_id, a.delegate_id, a.starts_at, a.ends_at
  from reached r
  join member_absence a on a.org_id = r.org_id and a.user_account_id = r.delegate_id and a.cancelled_at is null
    and a.starts_at < least(r.ends_at, $3) and a.ends_at > greatest(r.starts_at, $2)
)
select member_id, delegate_id, starts_at, ends_at from reached


-- name: claim_idempotency_key
select claim_once($1, $2, $3, $4, $5)


-- name: settle_idempotency_key
select settle_once($1, $2, $3, $4, $5)


-- name: find_trial_connection
select id, channel_type, name, config, sealed, disabled_at, plane_now() as now
from channel_connection where channel_type = $1 and config ? 'emulated'


-- name: list_trial_members
select m.channel_user_id as sender, u.display_name as name
from channel_mapping m join user_account u on u.org_id = m.org_id and u.id = m.user_account_id
where m.connection_id = $1 and m.verified_at is not null
order by m.id limit 1000


-- name: renew_trial_connection
-- A new emulator has none of the failures of the one before.
update channel_connection
set config = config || $2::jsonb, sealed = $3, failing_since = null, failures = 0, paused_until = null,
  disabled_at = case when disabled_reason = $4 then null else disabled_at end, disabled_reason = nullif(disabled_reason, $4),
  revision = revision + 1, updated_at = plane_now()
where id = $1
