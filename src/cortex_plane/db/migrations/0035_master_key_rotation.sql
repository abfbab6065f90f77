-- A new master key takes the place of the old one. From the first commit of a rotation on, `fingerprint` is that of the new key and
-- `previous` is the old key, sealed under the new one. `previous` is null again once every value is sealed anew.
alter table plane_key
  add column previous bytea,
  -- The newest orgs come first: this one and all before it are done.
  add column resealed_org_created_at timestamptz,
  add column resealed_org uuid,
  -- In the org after it, jobs up to this one are done.
  add column resealed_job uuid;
grant update (fingerprint, previous, resealed_org_created_at, resealed_org, resealed_job) on plane_key to cortex_app;
grant update (sealed) on signing_key, signing_secret to cortex_app;
