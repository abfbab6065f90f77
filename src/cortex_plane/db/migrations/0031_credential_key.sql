-- Credentials are found by an HMAC, and rows that give somebody power carry a MAC. Both need a key that whoever can only write to the
-- database does not have: it is random, and sealed with the master key.

create table credential_key (
  singleton     boolean primary key default true,
  sealed        bytea not null,
  created_at    timestamptz not null default plane_now(),
  -- When rows from before this migration had got their lookup and MAC. Since then a row without a MAC is worth nothing.
  converted_at  timestamptz,
  constraint chk_credential_key_singleton check (singleton)
);
grant select, insert, update (sealed, converted_at) on credential_key to cortex_app;

-- Null where no process of this release has started yet, and in rows that the plane did not write. The columns that are called hashes
-- hold the HMAC of the hash from now on.
alter table api_key add column mac bytea;
alter table browser_session add column mac bytea;
alter table login_link add column mac bytea;
alter table enrolment_code add column mac bytea;
alter table approval_token add column mac bytea;
alter table identity_code add column mac bytea;
alter table channel_mapping add column mac bytea;
alter table policy_version add column mac bytea;
alter table atlas_version add column mac bytea;
-- Over which version of its policies is in force.
alter table org add column policy_mac bytea;
grant update (mac) on channel_mapping, policy_version, atlas_version to cortex_app;

-- They say, and take, more now.
drop function if exists authenticate(bytea, text);
drop function if exists authenticate_browser(bytea, interval, boolean);
drop function if exists open_approval_token(bytea);
drop function if exists ingest_message(
  uuid, uuid, uuid, text, text, text, jsonb, text, text, uuid, uuid, uuid, uuid, bytea, bytea, bytea, bytea, bytea, uuid, text, bytea);
