-- The spine: tenants, people, keys, agents, channels, sessions with their messages, jobs, events and audit chains.
--
-- Accounts, sessions and audit entries are never deleted (no verb has the right to), so the append-only tables that are
-- written with every step refer to as few rows as possible: each foreign key locks the row that it points to.
--
-- Three rules hold for every table of a tenant, and a test walks the catalogue to prove them:
--   1. row-level security is enabled and forced, and compares org_id with the setting app.org_id;
--   2. a reference to another tenant row is composite (org_id, id), because foreign keys bypass row-level security;
--   3. the app's role gets only the rights that the verbs need: what is append-only cannot be updated.
--
-- Lock order, for every transaction that takes more than one:
--   session → job → session_head → org_head. A head is locked last and updated once per commit.

-- Time is the database's. Replaced in test databases only, so that time can be moved without waiting.
create function plane_now() returns timestamptz
  language sql volatile parallel safe
  return clock_timestamp();

-- The tenant ------------------------------------------------------------------------------------------------

create table org (
  id          uuid primary key,
  slug        text not null,
  name        text not null,
  settings    jsonb not null default '{}',
  revision    integer not null default 1,
  created_at  timestamptz not null default plane_now(),
  updated_at  timestamptz not null default plane_now(),
  constraint uq_org_slug unique (slug),
  constraint chk_org_slug_format check (slug ~ '^[a-z0-9][a-z0-9-]*[a-z0-9]$'),
  constraint chk_org_name_not_empty check (length(trim(name)) > 0)
);

-- The head of the org's own audit chain. Steps of jobs never touch it: its lock would serialise the whole org.
create table org_head (
  org_id      uuid primary key references org (id),
  audit_seq   bigint not null default 0,
  audit_hash  bytea not null default decode(repeat('00', 32), 'hex')
);

-- A parent has depth 1 and a child depth 2, so "one level of parents" is a foreign key and not a trigger.
create table team (
  org_id        uuid not null references org (id),
  id            uuid not null,
  slug          text not null,
  name          text not null,
  parent_id     uuid,
  depth         smallint not null generated always as (case when parent_id is null then 1 else 2 end) stored,
  parent_depth  smallint generated always as (case when parent_id is null then null else 1 end) stored,
  revision      integer not null default 1,
  created_at    timestamptz not null default plane_now(),
  updated_at    timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint uq_team_slug unique (org_id, slug),
  constraint uq_team_depth unique (org_id, id, depth),
  constraint fk_team_parent foreign key (org_id, parent_id, parent_depth) references team (org_id, id, depth),
  constraint chk_team_slug_format check (slug ~ '^[a-z0-9][a-z0-9-]*[a-z0-9]$'),
  constraint chk_team_name_not_empty check (length(trim(name)) > 0)
);
create index idx_team_parent on team (org_id, parent_id, parent_depth) where parent_id is not null;
create index idx_team_list on team (org_id, created_at desc, id desc);

-- A person of the org: a member, or a guest who came in over a channel.
create table user_account (
  org_id          uuid not null,
  id              uuid not null,
  display_name    text not null,
  clearance       integer not null default 0,
  roles           text[] not null,
  deactivated_at  timestamptz,
  revision        integer not null default 1,
  created_at      timestamptz not null default plane_now(),
  updated_at      timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint chk_display_name_not_empty check (length(trim(display_name)) > 0),
  constraint chk_user_account_clearance check (clearance between 0 and 1000),
  constraint chk_user_account_roles check (
    cardinality(roles) > 0
    and roles <@ array['admin', 'steward', 'operator', 'approver', 'member', 'guest'])
);
create index idx_user_account_staff on user_account (org_id) where roles <> '{guest}';
create index idx_user_account_list on user_account (org_id, created_at desc, id desc);

create table team_member (
  org_id           uuid not null,
  team_id          uuid not null,
  user_account_id  uuid not null,
  created_at       timestamptz not null default plane_now(),
  primary key (org_id, team_id, user_account_id),
  constraint fk_team_member_team foreign key (org_id, team_id) references team (org_id, id) on delete cascade,
  constraint fk_team_member_account foreign key (org_id, user_account_id) references user_account (org_id, id)
);
create index idx_team_member_account on team_member (org_id, user_account_id);

-- Only the SHA-256 of a key is kept. A platform key may create orgs and act inside any of them.
create table api_key (
  org_id           uuid not null references org (id),
  id               uuid not null,
  name             text not null,
  kind             text not null,
  user_account_id  uuid,
  roles            text[] not null default '{}',
  platform         boolean not null default false,
  secret_hash      bytea not null,
  last_characters  text not null,
  expires_at       timestamptz,
  revoked_at       timestamptz,
  last_used_at     timestamptz,
  created_at       timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint uq_api_key_secret unique (secret_hash),
  constraint fk_api_key_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_api_key_kind check (
    (kind = 'person' and user_account_id is not null and roles = '{}')
    or (kind = 'service' and user_account_id is null and cardinality(roles) > 0)),
  constraint chk_api_key_roles check (
    roles <@ array['admin', 'steward', 'operator', 'approver', 'member', 'guest']),
  constraint chk_api_key_hash check (length(secret_hash) = 32)
);
create index idx_api_key_account on api_key (org_id, user_account_id) where user_account_id is not null;
create index idx_api_key_list on api_key (org_id, created_at desc, id desc);

-- Agents ----------------------------------------------------------------------------------------------------

create table agent (
  org_id               uuid not null references org (id),
  id                   uuid not null,
  team_id              uuid not null,
  name                 text not null,
  slug                 text not null,
  status               text not null default 'ACTIVE',
  role                 text not null,
  description          text,
  channel_permissions  text[] not null default '{}',
  config_version       integer not null default 1,
  revision             integer not null default 1,
  created_at           timestamptz not null default plane_now(),
  updated_at           timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint uq_agent_name unique (org_id, name),
  constraint uq_agent_slug unique (org_id, slug),
  constraint fk_agent_team foreign key (org_id, team_id) references team (org_id, id),
  constraint chk_agent_status check (status in ('ACTIVE', 'DISABLED', 'ARCHIVED')),
  constraint chk_agent_name_not_empty check (length(trim(name)) > 0),
  constraint chk_agent_slug_format check (slug ~ '^[a-z0-9][a-z0-9-]*[a-z0-9]$' and length(slug) >= 2),
  constraint chk_agent_role_not_empty check (length(trim(role)) > 0)
);
create index idx_agent_team on agent (org_id, team_id);
create index idx_agent_list on agent (org_id, created_at desc, id desc);

-- Immutable: the app's role may insert versions, not change them. A job pins the version it started with.
create table agent_version (
  org_id           uuid not null,
  agent_id         uuid not null,
  version          integer not null,
  model_config     jsonb not null,
  skill_config     jsonb not null default '{}',
  resource_limits  jsonb not null default '{}',
  created_by       text not null,
  created_at       timestamptz not null default plane_now(),
  primary key (org_id, agent_id, version),
  constraint fk_agent_version_agent
    foreign key (org_id, agent_id) references agent (org_id, id) on delete cascade
);
-- The newest version must exist; deferred, because agent and version are written in one transaction.
alter table agent add constraint fk_agent_config_version
  foreign key (org_id, id, config_version) references agent_version (org_id, agent_id, version)
  deferrable initially deferred;

-- Channels --------------------------------------------------------------------------------------------------

create table channel_connection (
  org_id        uuid not null references org (id),
  id            uuid not null,
  channel_type  text not null,
  name          text not null,
  disabled_at   timestamptz,
  revision      integer not null default 1,
  created_at    timestamptz not null default plane_now(),
  updated_at    timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint uq_channel_connection_name unique (org_id, channel_type, name),
  constraint uq_channel_connection_type unique (org_id, id, channel_type),
  constraint chk_channel_type_lowercase check (channel_type = lower(channel_type)),
  constraint chk_channel_type_not_empty check (length(trim(channel_type)) > 0)
);
create index idx_channel_connection_list on channel_connection (org_id, created_at desc, id desc);

-- One person on one connection. The person's id on the platform, never the id of a chat or a group.
create table channel_mapping (
  org_id           uuid not null,
  id               uuid not null,
  connection_id    uuid not null,
  user_account_id  uuid not null,
  channel_type     text not null,
  channel_user_id  text not null,
  metadata         jsonb not null default '{}',
  verified_at      timestamptz,
  created_at       timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint uq_channel_identity unique (org_id, connection_id, channel_user_id),
  constraint fk_channel_mapping_connection
    foreign key (org_id, connection_id, channel_type) references channel_connection (org_id, id, channel_type),
  constraint fk_channel_mapping_account
    foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_channel_user_id_not_empty check (length(trim(channel_user_id)) > 0)
);
create index idx_channel_mapping_user on channel_mapping (org_id, user_account_id);

-- Sessions --------------------------------------------------------------------------------------------------

create table session (
  org_id                     uuid not null,
  id                         uuid not null,
  kind                       text not null,
  user_account_id            uuid,
  agent_id                   uuid not null,
  status                     text not null default 'CREATED',
  context                    jsonb not null default '{}',
  title                      text,
  origin_channel_mapping_id  uuid,
  opened_by                  uuid not null,
  revision                   integer not null default 1,
  created_at                 timestamptz not null default plane_now(),
  updated_at                 timestamptz not null default plane_now(),
  primary key (org_id, id),
  constraint fk_session_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_session_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint fk_session_origin
    foreign key (org_id, origin_channel_mapping_id) references channel_mapping (org_id, id),
  constraint chk_session_kind check (kind in ('conversation', 'programmatic', 'external')),
  constraint chk_session_status check (status in ('CREATED', 'ACTIVE', 'PAUSED', 'TERMINATED')),
  constraint chk_session_conversation_has_person check (kind <> 'conversation' or user_account_id is not null)
);
create unique index uq_session_open_conversation on session (org_id, user_account_id, agent_id)
  where kind = 'conversation' and status <> 'TERMINATED';
create index idx_session_list on session (org_id, created_at desc, id desc);
create index idx_session_user on session (org_id, user_account_id, created_at desc, id desc)
  where user_account_id is not null;
create index idx_session_opened_by on session (org_id, opened_by, created_at desc, id desc);
create index idx_session_status on session (org_id, status, created_at desc, id desc);
create index idx_session_agent on session (org_id, agent_id, created_at desc, id desc);
create index idx_session_origin on session (org_id, origin_channel_mapping_id)
  where origin_channel_mapping_id is not null;

-- The narrow, hot row of a session: sequences, the end of its audit chain, the time of its last activity.
create table session_head (
  org_id            uuid not null,
  session_id        uuid not null,
  message_seq       bigint not null default 0,
  event_seq         bigint not null default 0,
  audit_seq         bigint not null default 0,
  audit_hash        bytea not null default decode(repeat('00', 32), 'hex'),
  last_activity_at  timestamptz not null default plane_now(),
  primary key (org_id, session_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Jobs ------------------------------------------------------------------------------------------------------

create table job (
  org_id            uuid not null,
  id                uuid not null,
  session_id        uuid not null,
  agent_id          uuid not null,
  agent_version     integer not null,
  kind              text not null,
  status            text not null default 'PENDING',
  payload           jsonb not null,
  retry_count       integer not null default 0,
  max_retries       integer not null default 3,
  next_retry_at     timestamptz,
  open_approvals    integer not null default 0,
  error_message     text,
  resubmitted_from  uuid,
  created_at        timestamptz not null default plane_now(),
  updated_at        timestamptz not null default plane_now(),
  finished_at       timestamptz,
  primary key (org_id, id),
  constraint fk_job_session foreign key (org_id, session_id) references session (org_id, id),
  constraint fk_job_agent_version
    foreign key (org_id, agent_id, agent_version) references agent_version (org_id, agent_id, version),
  constraint fk_job_resubmitted_from foreign key (org_id, resubmitted_from) references job (org_id, id),
  constraint chk_job_kind check (kind in ('conversation', 'task')),
  constraint chk_job_status check (status in (
    'PENDING', 'RUNNING', 'RETRY', 'WAITING_FOR_APPROVAL', 'SLEEPING', 'PAUSED',
    'COMPLETED', 'FAILED', 'CANCELLED')),
  constraint chk_job_retry_bounds check (
    0 <= retry_count and retry_count <= max_retries and max_retries <= 100),
  constraint chk_job_retry_has_time check (status <> 'RETRY' or next_retry_at is not null),
  constraint chk_job_waiting_has_approval check (status <> 'WAITING_FOR_APPROVAL' or open_approvals > 0),
  constraint chk_job_open_approvals check (open_approvals >= 0),
  constraint chk_job_terminal_has_end check (
    (status in ('COMPLETED', 'FAILED', 'CANCELLED')) = (finished_at is not null)),
  constraint chk_job_failed_has_error check (status <> 'FAILED' or error_message is not null)
) with (fillfactor = 85);
create unique index uq_job_open_conversation on job (org_id, session_id)
  where kind = 'conversation' and status not in ('COMPLETED', 'FAILED', 'CANCELLED');
create index idx_job_pending on job (created_at) where status = 'PENDING';
create index idx_job_retry on job (next_retry_at) where status = 'RETRY';
create index idx_job_list on job (org_id, created_at desc, id desc);
create index idx_job_session on job (org_id, session_id, created_at desc, id desc);
create index idx_job_agent on job (org_id, agent_id, created_at desc, id desc);
create index idx_job_status on job (org_id, status, created_at desc, id desc);
create index idx_job_resubmitted_from on job (org_id, resubmitted_from) where resubmitted_from is not null;

create table job_history (
  org_id           uuid not null,
  id               bigint generated always as identity,
  job_id           uuid not null,
  previous_status  text,
  new_status       text not null,
  metadata         jsonb not null default '{}',
  created_at       timestamptz not null default plane_now(),
  primary key (org_id, job_id, id)
);

-- Messages, events, audit -----------------------------------------------------------------------------------

create table message (
  org_id              uuid not null,
  session_id          uuid not null,
  seq                 bigint not null,
  role                text not null,
  text                text not null,
  author_id           uuid,
  channel_mapping_id  uuid,
  job_id              uuid,
  created_at          timestamptz not null default plane_now(),
  primary key (org_id, session_id, seq),
  constraint fk_message_session foreign key (org_id, session_id) references session (org_id, id),
  constraint fk_message_job foreign key (org_id, job_id) references job (org_id, id),
  constraint chk_message_role check (role in ('user', 'assistant', 'system', 'tool'))
);

-- Partitioned by month. A unique key over partitions would need the time in it, so the sequence is unique because
-- the session's head hands it out. `prepare_event_partitions` makes the months ahead at every start of a plane
-- process; the default partition takes whatever no month does, so an insert can never fail for want of one.
create table event (
  org_id      uuid not null,
  session_id  uuid not null,
  seq         bigint not null,
  type        text not null,
  job_id      uuid,
  data        jsonb not null default '{}',
  created_at  timestamptz not null default plane_now(),
  primary key (org_id, session_id, seq, created_at)
) partition by range (created_at);
create table event_default partition of event default;

-- One chain per session, and one for the org itself (session_id null).
create table audit_entry (
  org_id      uuid not null,
  chain_id    uuid not null generated always as (coalesce(session_id, org_id)) stored,
  session_id  uuid,
  seq         bigint not null,
  action      text not null,
  body        bytea,
  body_hash   bytea not null,
  hash        bytea not null,
  created_at  timestamptz not null,
  primary key (org_id, chain_id, seq),
  constraint chk_audit_entry_hashes check (length(body_hash) = 32 and length(hash) = 32)
);

-- The answer to a request that carried an Idempotency-Key, written in the transaction that it answers.
create table idempotency (
  org_id       uuid not null,
  caller_id    uuid not null,
  verb         text not null,
  key          text not null,
  fingerprint  bytea not null,
  result       jsonb,
  created_at   timestamptz not null default plane_now(),
  primary key (org_id, caller_id, verb, key)
);

-- Row-level security ----------------------------------------------------------------------------------------

do $$
declare
  tenant_table text;
begin
  alter table org enable row level security;
  alter table org force row level security;
  create policy tenant on org
    using (id = nullif(current_setting('app.org_id', true), '')::uuid)
    with check (id = nullif(current_setting('app.org_id', true), '')::uuid);
  foreach tenant_table in array array[
    'org_head', 'team', 'user_account', 'team_member', 'api_key', 'agent', 'agent_version',
    'channel_connection', 'channel_mapping', 'session', 'session_head', 'job', 'job_history', 'message',
    'event', 'event_default', 'audit_entry', 'idempotency']
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

-- Rights ----------------------------------------------------------------------------------------------------
-- cortex_app is what the plane's login may do; cortex_resolver finds the org of a secret before it is known.

grant usage on schema public to cortex_app, cortex_resolver;

grant select, insert, update on org, org_head, user_account, session, session_head, idempotency to cortex_app;
grant select, insert, update, delete on team, agent to cortex_app;
grant select, insert, update on channel_connection to cortex_app;
grant select, insert, delete on team_member to cortex_app;
grant select, insert, update (revoked_at, last_used_at) on api_key to cortex_app;
grant select, insert on agent_version, channel_mapping, job_history, message, event, audit_entry to cortex_app;
grant select, insert, update (
  status, retry_count, next_retry_at, open_approvals, error_message, updated_at, finished_at
) on job to cortex_app;

grant select (id, slug, created_at) on org to cortex_resolver;
grant select (org_id, id, secret_hash) on api_key to cortex_resolver;
create policy resolver on org for select to cortex_resolver using (true);
create policy resolver on api_key for select to cortex_resolver using (true);
