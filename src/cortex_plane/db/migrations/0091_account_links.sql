-- A member links an account at a vendor by logging in there. What is under way belongs to one browser session and ends in no other.
create table account_link (
  org_id uuid not null,
  id uuid not null,
  connection_id uuid not null,
  user_account_id uuid not null,
  session_id uuid not null,
  -- The vendor hands the state back with its answer; only an HMAC of it is stored.
  state_hash bytea not null,
  -- When the vendor's answer came. It is taken once.
  answered_at timestamptz,
  -- The account that the vendor named, which waits for its member to confirm it.
  account_id text,
  login text,
  expires_at timestamptz not null,
  created_at timestamptz not null default plane_now(),
  mac bytea not null,
  constraint uq_account_link_session unique (org_id, session_id, connection_id),
  constraint fk_account_link_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_account_link_connection foreign key (org_id, connection_id) references channel_connection (org_id, id),
  constraint chk_account_link_hash check (length(state_hash) = 32),
  constraint chk_account_link_named check ((account_id is null) = (login is null) and (account_id is null or answered_at is not null))
);
alter table account_link add primary key (org_id, id);
create index idx_account_link_account on account_link (org_id, user_account_id);
create index idx_account_link_connection on account_link (org_id, connection_id);
grant select, insert, delete, update (id, user_account_id, state_hash, answered_at, account_id, login, expires_at, created_at, mac)
  on account_link to cortex_app;
alter table account_link enable row level security;
alter table account_link force row level security;
create policy tenant on account_link
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);

-- Who said whose account it is, where a member has not proven it. They could act as that member over this mapping, and over no other.
-- For mappings from before, those who said so stand in `set_up_by` of the connection.
alter table channel_mapping add column vouched_by uuid[] not null default '{}';
-- When the member logged in at the vendor with this account. From then on nobody else's word counts for it.
alter table channel_mapping add column account_proven_at timestamptz;
grant update (vouched_by, account_proven_at) on channel_mapping to cortex_app;
