-- What decides from outside the dashboard: tokens, of which only the SHA-256 is kept, and the secrets that sign links,
-- which are sealed with the master key.

-- One per approver and message. It decides what that message showed: `version` and `input_hash`.
create table approval_token (
  org_id           uuid not null,
  id               uuid not null,
  approval_id      uuid not null,
  user_account_id  uuid not null,
  -- The message that carries it. Messages may be forgotten before their tokens, so nothing refers to them.
  notification_id  uuid,
  token_hash       bytea not null,
  version          integer not null,
  input_hash       bytea not null,
  created_at       timestamptz not null default plane_now(),
  expires_at       timestamptz not null,
  used_at          timestamptz,
  primary key (org_id, id),
  constraint uq_approval_token_hash unique (token_hash),
  constraint fk_approval_token_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_approval_token_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_approval_token_hashes check (length(token_hash) = 32 and length(input_hash) = 32)
);
-- Whichever of the two is chosen for the tokens of a voter, it finds few: one approver may have thousands.
create index idx_approval_token_approval on approval_token (org_id, approval_id);
create index idx_approval_token_account on approval_token (org_id, user_account_id, approval_id);
create index idx_approval_token_expiry on approval_token (expires_at);

-- One current secret for each purpose; those before it are accepted until `retire_at`.
create table signing_secret (
  org_id      uuid not null,
  id          uuid not null,
  purpose     text not null,
  sealed      bytea not null,
  created_at  timestamptz not null default plane_now(),
  retire_at   timestamptz,
  primary key (org_id, id),
  constraint fk_signing_secret_org foreign key (org_id) references org (id),
  constraint chk_signing_secret_purpose check (purpose in ('callback'))
);
create unique index uq_signing_secret_current on signing_secret (org_id, purpose) where retire_at is null;
create index idx_signing_secret_purpose on signing_secret (org_id, purpose, created_at desc);
create index idx_signing_secret_age on signing_secret (created_at) where retire_at is null;
create index idx_signing_secret_retired on signing_secret (retire_at) where retire_at is not null;

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['approval_token', 'signing_secret']
  loop
    execute format('alter table %I enable row level security', tenant_table);
    execute format('alter table %I force row level security', tenant_table);
    execute format($policy$
      create policy tenant on %I
        using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
        with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
    $policy$, tenant_table);
  end loop;
end
$$;

grant select, insert, update (used_at), delete on approval_token to cortex_app;
grant select, insert, update (retire_at), delete on signing_secret to cortex_app;

-- A token and the approval of a link are looked up before their org is known.
grant select (org_id, id, token_hash) on approval_token to cortex_resolver;
create policy resolver on approval_token for select to cortex_resolver using (true);
grant select (org_id, id) on approval_request to cortex_resolver;
create policy resolver on approval_request for select to cortex_resolver using (true);
create index idx_approval_request_id on approval_request (id);

-- cortex_scheduler finds what is too old, across orgs. It sees when, and nothing else.
grant select (org_id, id, expires_at) on approval_token to cortex_scheduler;
create policy scheduler on approval_token for select to cortex_scheduler using (true);
grant select (org_id, id, created_at, retire_at) on signing_secret to cortex_scheduler;
create policy scheduler on signing_secret for select to cortex_scheduler using (true);
