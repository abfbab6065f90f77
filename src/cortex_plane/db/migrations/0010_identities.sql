-- Whose an address or a sender is: proven by a link in a mail, or by a code that its owner types on the other channel. Of a
-- link and a code only its SHA-256 is kept.

-- Only what is proven is somebody's. Anybody may claim an address, several people at once, until one of them proves that
-- they read its mail; so nobody keeps an address from its owner by naming it first.
alter table channel_mapping drop constraint uq_channel_identity;
create unique index uq_channel_identity on channel_mapping (org_id, connection_id, channel_user_id)
  where verified_at is not null;

-- Sessions and messages tell over which mapping they came, so one that is given up stays, and is nobody's way in any more.
alter table channel_mapping add column removed_at timestamptz;
alter table channel_mapping add constraint chk_channel_mapping_removed
  check (removed_at is null or verified_at is null);
create unique index uq_channel_claim on channel_mapping (org_id, connection_id, channel_user_id, user_account_id)
  where removed_at is null;

create table identity_code (
  org_id           uuid not null,
  id               uuid not null,
  -- Who it is about.
  user_account_id  uuid not null,
  -- A link in a mail proves this one. A code that is typed on another channel proves whoever types it.
  mapping_id       uuid,
  code_hash        bytea not null,
  -- An invitation logs in whoever opens it; an address that somebody added is confirmed by somebody who is logged in.
  purpose          text not null,
  -- By name.
  issued_by        text not null,
  created_at       timestamptz not null default plane_now(),
  expires_at       timestamptz not null,
  used_at          timestamptz,
  primary key (org_id, id),
  constraint uq_identity_code unique (code_hash),
  constraint fk_identity_code_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_identity_code_mapping foreign key (org_id, mapping_id) references channel_mapping (org_id, id),
  constraint chk_identity_code_hash check (length(code_hash) = 32),
  constraint chk_identity_code_purpose check (purpose in ('invitation', 'address', 'sender')),
  constraint chk_identity_code_mapping check ((purpose = 'sender') = (mapping_id is null))
);
create index idx_identity_code_account on identity_code (org_id, user_account_id);
create index idx_identity_code_mapping on identity_code (org_id, mapping_id) where mapping_id is not null;

-- Codes that were typed wrong, by sender, so that nobody tries them all.
create table identity_guess (
  org_id         uuid not null,
  connection_id  uuid not null,
  sender         text not null,
  wrong          integer not null,
  forget_at      timestamptz not null,
  primary key (org_id, connection_id, sender),
  constraint fk_identity_guess_connection foreign key (org_id, connection_id)
    references channel_connection (org_id, id)
);
create index idx_identity_guess_forget on identity_guess (org_id, connection_id, forget_at);

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['identity_code', 'identity_guess']
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

-- A link is looked up before its org is known.
grant select (org_id, id, code_hash) on identity_code to cortex_resolver;
create policy resolver on identity_code for select to cortex_resolver using (true);

grant select, insert, update (used_at), delete on identity_code to cortex_app;
grant select, insert, update (wrong, forget_at), delete on identity_guess to cortex_app;
grant update (verified_at, removed_at) on channel_mapping to cortex_app;
