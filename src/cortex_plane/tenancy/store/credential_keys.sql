-- name: api_keys
select org_id, id, user_account_id, kind, roles, permissions, platform, readable_time(expires_at) as expires_at, secret_hash, mac,
  revoked_at is null as live
from api_key where not $1::boolean or mac is null order by id limit $2


-- name: approval_tokens
select org_id, id, user_account_id, approval_id, version, encode(input_hash, 'hex') as input_hash, readable_time(expires_at) as expires_at, token_hash, mac,
  used_at is null as live
from approval_token where not $1::boolean or mac is null order by id limit $2


-- name: atlas_versions
select org_id, atlas_id, version, number, digest, access, api_keys, retired_at is not null as retired, mac
from atlas_version where not $1::boolean or mac is null order by atlas_id, number limit $2


-- name: browser_sessions
select org_id, id, user_account_id, key_id, readable_time(expires_at) as expires_at, secret_hash, mac,
  true as live
from browser_session where not $1::boolean or mac is null order by id limit $2


-- name: enrolment_codes
select org_id, id, user_account_id, issuer_id, key_id, readable_time(expires_at) as expires_at, code_hash, mac,
  used_at is null as live
from enrolment_code where not $1::boolean or mac is null order by id limit $2


-- name: identity_codes
select org_id, id, user_account_id, mapping_id, purpose, readable_time(expires_at) as expires_at, code_hash, mac,
  used_at is null as live
from identity_code where not $1::boolean or mac is null order by id limit $2


-- name: is_converted
select converted_at is not null from credential_key


-- name: login_links
select org_id, id, user_account_id, key_id, readable_time(expires_at) as expires_at, secret_hash, mac,
  used_at is null as live
from login_link where not $1::boolean or mac is null order by id limit $2


-- name: mappings
select org_id, id, connection_id, channel_user_id, user_account_id, verified_at is not null as verified, mac, true as live
from channel_mapping where removed_at is null and (not $1::boolean or mac is null) order by id limit $2


-- name: now
select plane_now()


-- name: reseal
update credential_key set sealed = $1


-- name: sealed
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
