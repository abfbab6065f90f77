-- The whole schema as one migration, written by `python -m scripts.baseline`.
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
--   session → agent's claim lock → jobs (by id) → approval → notification → tool_call → session_head → org_head.
-- A head is locked last and updated once per commit.
--
-- A job is leased by at most one worker. Every write of an attempt names worker, epoch and the number of the write
-- before it: whoever lost the job changes nothing, and a write that is sent twice is applied once.
--
-- The primary key of a table is made after its other indexes. Without statistics, as in a new plane, several indexes that begin with the
-- org seem to cost the same, and the planner takes the one that was made last: it would read all rows of an org to find one by its id.

-- Time is the database's. Replaced in test databases only, so that time can be moved without waiting.
create function plane_now() returns timestamptz language sql parallel safe return clock_timestamp();
create function tool_call_is_sound(status text, has_end boolean, hash_length integer, read_only boolean, verdict text, has_rule
  boolean, has_window boolean, on_uncertain text, granted boolean) returns boolean language plpgsql immutable parallel safe set
  search_path to 'public', 'pg_temp' as $$ begin return true; end $$;

create table org (
  id uuid not null,
  slug text not null,
  name text not null,
  settings jsonb not null default '{}',
  revision integer not null default 1,
  created_at timestamptz not null default plane_now(),
  updated_at timestamptz not null default plane_now(),
  policy_version bigint not null default 0,
  -- Part of the name of the policies that hold: an intent written under an older confirmation is refused.
  confirmation_version bigint not null default 0,
  -- Over which version of its policies is in force.
  policy_mac bytea,
  constraint uq_org_slug unique (slug),
  constraint chk_org_name_not_empty check (length(trim(both from name)) > 0),
  constraint chk_org_slug_format check (slug ~ '^[a-z0-9][a-z0-9-]*[a-z0-9]$')
);
alter table org add primary key (id);
alter table org enable row level security;
alter table org force row level security;
create policy resolver on org for select to cortex_resolver using (true);
create policy scheduler on org for select to cortex_scheduler using (true);
create policy tenant on org using (id = nullif(current_setting('app.org_id', true), '')::uuid) with check (id =
  nullif(current_setting('app.org_id', true), '')::uuid);
grant select, insert, update on org to cortex_app;
grant select (id, slug, created_at) on org to cortex_resolver;
grant select (id) on org to cortex_scheduler;

-- The head of the org's own audit chain. Steps of jobs never touch it: its lock would serialise the whole org.
create table org_head (
  org_id uuid not null,
  audit_seq bigint not null default 0,
  audit_hash bytea not null default decode(repeat('00', 32), 'hex'),
  constraint org_head_org_id_fkey foreign key (org_id) references org (id)
);
alter table org_head add primary key (org_id);
grant select, insert, update on org_head to cortex_app;

-- A parent has depth 1 and a child depth 2, so "one level of parents" is a foreign key and not a trigger.
create table team (
  org_id uuid not null,
  id uuid not null,
  slug text not null,
  name text not null,
  parent_id uuid,
  depth smallint generated always as (case when (parent_id is null) then 1 else 2 end) stored not null,
  parent_depth smallint generated always as (case when (parent_id is null) then null::integer else 1 end) stored,
  revision integer not null default 1,
  created_at timestamptz not null default plane_now(),
  updated_at timestamptz not null default plane_now(),
  constraint uq_team_depth unique (org_id, id, depth),
  constraint uq_team_slug unique (org_id, slug),
  constraint team_org_id_fkey foreign key (org_id) references org (id),
  constraint chk_team_name_not_empty check (length(trim(both from name)) > 0),
  constraint chk_team_slug_format check (slug ~ '^[a-z0-9][a-z0-9-]*[a-z0-9]$')
);
create index idx_team_list on team (org_id, created_at desc, id desc);
create index idx_team_parent on team (org_id, parent_id, parent_depth) where (parent_id is not null);
alter table team add primary key (org_id, id);
alter table team add constraint fk_team_parent foreign key (org_id, parent_id, parent_depth) references team (org_id, id, depth);
grant select, insert, delete, update on team to cortex_app;

-- A person of the org: a member, or a guest who came in over a channel.
create table user_account (
  org_id uuid not null,
  id uuid not null,
  display_name text not null,
  clearance integer not null default 0,
  roles text[] not null,
  deactivated_at timestamptz,
  revision integer not null default 1,
  created_at timestamptz not null default plane_now(),
  updated_at timestamptz not null default plane_now(),
  -- Whoever added, enrolled or promoted this person: accounts, and keys of programs and of the platform. Rows from before this have
  -- none, and count on their own.
  sponsors uuid[] not null default '{}'::uuid[],
  -- When this member was deactivated last. A signed link has no row that could end with the access of its person, so those for
  -- requests from before it do not work.
  access_ended_at timestamptz,
  constraint chk_display_name_not_empty check (length(trim(both from display_name)) > 0),
  constraint chk_user_account_clearance check (clearance between 0 and 1000),
  constraint chk_user_account_roles check ((cardinality(roles) > 0) and (roles <@ array['admin', 'steward', 'operator',
    'approver', 'member', 'guest']))
);
create index idx_user_account_list on user_account (org_id, created_at desc, id desc);
create index idx_user_account_staff on user_account (org_id) where (roles <> '{guest}');
alter table user_account add primary key (org_id, id);
grant select, insert, update on user_account to cortex_app;

create table team_member (
  org_id uuid not null,
  team_id uuid not null,
  user_account_id uuid not null,
  created_at timestamptz not null default plane_now(),
  constraint fk_team_member_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_team_member_team foreign key (org_id, team_id) references team (org_id, id) on delete cascade
);
create index idx_team_member_account on team_member (org_id, user_account_id);
alter table team_member add primary key (org_id, team_id, user_account_id);
grant select, insert, delete on team_member to cortex_app;

-- Only the SHA-256 of a key is kept. A platform key may create orgs and act inside any of them.
create table api_key (
  org_id uuid not null,
  id uuid not null,
  name text not null,
  kind text not null,
  user_account_id uuid,
  roles text[] not null default '{}',
  platform boolean not null default false,
  secret_hash bytea not null,
  last_characters text not null,
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz,
  created_at timestamptz not null default plane_now(),
  permissions text[] not null default '{}',
  made_with uuid,
  -- Whoever made a key answers for the program that uses it.
  owner_id uuid,
  -- Null where no process of this release has started yet, and in rows that the plane did not write. The columns that are called hashes
  -- hold the HMAC of the hash from now on.
  mac bytea,
  constraint uq_api_key_secret unique (secret_hash),
  constraint api_key_org_id_fkey foreign key (org_id) references org (id),
  constraint fk_api_key_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_api_key_owner foreign key (org_id, owner_id) references user_account (org_id, id),
  constraint chk_api_key_hash check (length(secret_hash) = 32),
  constraint chk_api_key_kind check (((kind = 'person') and (user_account_id is not null) and (roles = '{}')) or ((kind =
    'service') and (user_account_id is null) and (cardinality(roles) > 0))),
  constraint chk_api_key_permissions check (((kind = 'service') or (permissions = '{}')) and (permissions <@
    array['connection.write', 'policy.write', 'atlas.write', 'tool.confirm', 'agent.write', 'team.write', 'org.write',
    'member.write'])),
  constraint chk_api_key_roles check (roles <@ array['admin', 'steward', 'operator', 'approver', 'member', 'guest'])
);
create index idx_api_key_account on api_key (org_id, user_account_id) where (user_account_id is not null);
create index idx_api_key_list on api_key (org_id, created_at desc, id desc);
create index idx_api_key_made_with on api_key (org_id, made_with) where (made_with is not null);
create index idx_api_key_owner on api_key (org_id, owner_id) where (owner_id is not null);
alter table api_key add primary key (org_id, id);
alter table api_key add constraint fk_api_key_made_with foreign key (org_id, made_with) references api_key (org_id, id);
create policy resolver on api_key for select to cortex_resolver using (true);
grant select, insert, update (revoked_at, last_used_at) on api_key to cortex_app;
grant select (org_id, id, secret_hash) on api_key to cortex_resolver;

create table agent (
  org_id uuid not null,
  id uuid not null,
  team_id uuid not null,
  name text not null,
  slug text not null,
  status text not null default 'ACTIVE',
  role text not null,
  description text,
  channel_permissions text[] not null default '{}',
  config_version integer not null default 1,
  revision integer not null default 1,
  created_at timestamptz not null default plane_now(),
  updated_at timestamptz not null default plane_now(),
  constraint uq_agent_name unique (org_id, name),
  constraint uq_agent_slug unique (org_id, slug),
  constraint agent_org_id_fkey foreign key (org_id) references org (id),
  constraint fk_agent_team foreign key (org_id, team_id) references team (org_id, id),
  constraint chk_agent_name_not_empty check (length(trim(both from name)) > 0),
  constraint chk_agent_role_not_empty check (length(trim(both from role)) > 0),
  constraint chk_agent_slug_format check ((slug ~ '^[a-z0-9][a-z0-9-]*[a-z0-9]$') and (length(slug) >= 2)),
  constraint chk_agent_status check (status in ('ACTIVE', 'DISABLED', 'ARCHIVED'))
);
create index idx_agent_list on agent (org_id, created_at desc, id desc);
create index idx_agent_team on agent (org_id, team_id);
alter table agent add primary key (org_id, id);
create policy claimer on agent for select to cortex_claimer using (true);
grant select, insert, delete, update on agent to cortex_app;
grant select (org_id, id, config_version) on agent to cortex_claimer;

-- Immutable: the app's role may insert versions, not change them. A job pins the version it started with.
create table agent_version (
  org_id uuid not null,
  agent_id uuid not null,
  version integer not null,
  model_config jsonb not null,
  skill_config jsonb not null default '{}',
  resource_limits jsonb not null default '{}',
  created_by text not null,
  created_at timestamptz not null default plane_now(),
  created_by_id uuid,
  constraint fk_agent_version_agent foreign key (org_id, agent_id) references agent (org_id, id) on delete cascade
);
alter table agent_version add primary key (org_id, agent_id, version);
create policy claimer on agent_version for select to cortex_claimer using (true);
grant select, insert on agent_version to cortex_app;
grant select (org_id, agent_id, version, resource_limits) on agent_version to cortex_claimer;

create table channel_connection (
  org_id uuid not null,
  id uuid not null,
  channel_type text not null,
  name text not null,
  disabled_at timestamptz,
  revision integer not null default 1,
  created_at timestamptz not null default plane_now(),
  updated_at timestamptz not null default plane_now(),
  config jsonb not null default '{}',
  -- Its secrets, sealed with the master key.
  sealed bytea,
  -- Since when nothing has got through.
  failing_since timestamptz,
  disabled_reason text,
  -- Whoever set the secret of this connection, or said whose a name behind it is: they could have made what comes through it.
  set_up_by uuid[] not null default '{}'::uuid[],
  constraint uq_channel_connection_name unique (org_id, channel_type, name),
  constraint uq_channel_connection_type unique (org_id, id, channel_type),
  constraint channel_connection_org_id_fkey foreign key (org_id) references org (id),
  constraint chk_channel_type_lowercase check (channel_type = lower(channel_type)),
  constraint chk_channel_type_not_empty check (length(trim(both from channel_type)) > 0)
);
-- It also finds what has been failing for too long. It sees since when, and nothing else.
create index idx_channel_connection_failing on channel_connection (failing_since) where ((failing_since is not null) and
  (disabled_at is null));
create index idx_channel_connection_list on channel_connection (org_id, created_at desc, id desc);
-- A connection is looked up by what a sender puts into the path, before its org is known.
create unique index uq_channel_connection_id on channel_connection (id);
alter table channel_connection add primary key (org_id, id);
create policy resolver on channel_connection for select to cortex_resolver using (true);
create policy scheduler on channel_connection for select to cortex_scheduler using (true);
grant select, insert, update on channel_connection to cortex_app;
grant select (org_id, id) on channel_connection to cortex_resolver;
grant select (org_id, id, channel_type, disabled_at, failing_since) on channel_connection to cortex_scheduler;

-- One person on one connection. The person's id on the platform, never the id of a chat or a group.
create table channel_mapping (
  org_id uuid not null,
  id uuid not null,
  connection_id uuid not null,
  user_account_id uuid not null,
  channel_type text not null,
  channel_user_id text not null,
  metadata jsonb not null default '{}',
  verified_at timestamptz,
  created_at timestamptz not null default plane_now(),
  suppressed_at timestamptz,
  suppressed_reason text,
  -- Sessions and messages tell over which mapping they came, so one that is given up stays, and is nobody's way in any more.
  removed_at timestamptz,
  -- When a member showed that this address or sender is theirs; `verified_at` alone may be an admin's word or a first contact. What
  -- members have is theirs: only people who were guests did not prove it. Forced row-level security holds for the owner too, who
  -- would change no row at all without this.
  proven_at timestamptz,
  mac bytea,
  constraint fk_channel_mapping_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_channel_mapping_connection foreign key (org_id, connection_id, channel_type) references channel_connection
    (org_id, id, channel_type),
  constraint chk_channel_mapping_removed check ((removed_at is null) or (verified_at is null)),
  constraint chk_channel_mapping_suppressed check ((suppressed_at is null) = (suppressed_reason is null)),
  constraint chk_channel_user_id_not_empty check (length(trim(both from channel_user_id)) > 0)
);
create index idx_channel_mapping_user on channel_mapping (org_id, user_account_id);
create unique index uq_channel_claim on channel_mapping (org_id, connection_id, channel_user_id, user_account_id) where
  (removed_at is null);
-- Only what is proven is somebody's. Anybody may claim an address, several people at once, until one of them proves that
-- they read its mail; so nobody keeps an address from its owner by naming it first.
create unique index uq_channel_identity on channel_mapping (org_id, connection_id, channel_user_id) where (verified_at is not
  null);
alter table channel_mapping add primary key (org_id, id);
grant select, insert, update (verified_at, suppressed_at, suppressed_reason, removed_at, proven_at, mac) on channel_mapping to
  cortex_app;

create table session (
  org_id uuid not null,
  id uuid not null,
  kind text not null,
  user_account_id uuid,
  agent_id uuid not null,
  status text not null default 'CREATED',
  context jsonb not null default '{}',
  title text,
  origin_channel_mapping_id uuid,
  opened_by uuid not null,
  revision integer not null default 1,
  created_at timestamptz not null default plane_now(),
  updated_at timestamptz not null default plane_now(),
  held_at timestamptz,
  hold_reason text,
  idle_check_at timestamptz,
  -- Everybody who wrote what stands in the context.
  context_by uuid[] not null default '{}'::uuid[],
  constraint fk_session_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_session_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint fk_session_origin foreign key (org_id, origin_channel_mapping_id) references channel_mapping (org_id, id),
  constraint chk_session_conversation_has_person check ((kind <> 'conversation') or (user_account_id is not null)),
  constraint chk_session_kind check (kind in ('conversation', 'programmatic', 'external')),
  constraint chk_session_status check (status in ('CREATED', 'ACTIVE', 'PAUSED', 'TERMINATED'))
);
create index idx_session_agent on session (org_id, agent_id, created_at desc, id desc);
create index idx_session_idle on session (idle_check_at) where (idle_check_at is not null);
create index idx_session_list on session (org_id, created_at desc, id desc);
create index idx_session_opened_by on session (org_id, opened_by, created_at desc, id desc);
create index idx_session_origin on session (org_id, origin_channel_mapping_id) where (origin_channel_mapping_id is not null);
create index idx_session_status on session (org_id, status, created_at desc, id desc);
create index idx_session_user on session (org_id, user_account_id, created_at desc, id desc) where (user_account_id is not null);
create unique index uq_session_open_conversation on session (org_id, user_account_id, agent_id) where ((kind = 'conversation') and
  (status <> 'TERMINATED'));
alter table session add primary key (org_id, id);
create policy scheduler on session for select to cortex_scheduler using (true);
grant select, insert, update, update (context_by) on session to cortex_app;
grant select (org_id, id, idle_check_at) on session to cortex_scheduler;

-- The narrow, hot row of a session: sequences, the end of its audit chain, the time of its last activity.
create table session_head (
  org_id uuid not null,
  session_id uuid not null,
  message_seq bigint not null default 0,
  event_seq bigint not null default 0,
  audit_seq bigint not null default 0,
  audit_hash bytea not null default decode(repeat('00', 32), 'hex'),
  last_activity_at timestamptz not null default plane_now()
) with (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');
alter table session_head add primary key (org_id, session_id);
grant select, insert, update on session_head to cortex_app;

create table job (
  org_id uuid not null,
  id uuid not null,
  session_id uuid not null,
  agent_id uuid not null,
  agent_version integer not null,
  kind text not null,
  status text not null default 'PENDING',
  payload jsonb not null,
  retry_count integer not null default 0,
  max_retries integer not null default 3,
  next_retry_at timestamptz,
  open_approvals integer not null default 0,
  error_message text,
  resubmitted_from uuid,
  created_at timestamptz not null default plane_now(),
  updated_at timestamptz not null default plane_now(),
  finished_at timestamptz,
  app text not null default 'plane',
  checkpoint jsonb,
  checkpoint_mac bytea,
  worker_id uuid,
  epoch bigint not null default 0,
  write_seq bigint not null default 0,
  leased_at timestamptz,
  -- When it may be claimed; null while it is leased, held, waiting for somebody or finished.
  runnable_at timestamptz default plane_now(),
  -- 0 before 1: what was begun goes before what is new.
  queue smallint generated always as (case when (epoch = 0) then 1 else 0 end) stored not null,
  wake_at timestamptz,
  holds text[] not null default '{}',
  held_at timestamptz,
  cancel_requested_at timestamptz,
  cancel_reason text,
  deaths integer not null default 0,
  running_seconds double precision not null default 0,
  step_index integer,
  result jsonb,
  -- What a request demands for its own job: written once, with the job.
  policies jsonb,
  -- Who must not approve alone what they asked for themselves. Null where a program asked.
  caused_by uuid,
  -- Who submitted a job, or submitted it again.
  submitted_by uuid,
  -- How often in a row the job was handed back without progress. A finished step sets it to 0.
  hand_backs integer not null default 0,
  -- The memory of a job (summary, facts, the agent's own data) is written when it changes, not with every checkpoint. See
  -- `whole_checkpoint`: whoever reads a checkpoint gets it complete.
  memory jsonb,
  constraint fk_job_agent_version foreign key (org_id, agent_id, agent_version) references agent_version (org_id, agent_id,
    version),
  constraint fk_job_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_job_checkpoint_is_signed check ((checkpoint is null) = (checkpoint_mac is null)),
  constraint chk_job_hand_backs check (hand_backs >= 0)
) with (fillfactor='70');
alter table job alter column memory set storage external;
create index idx_job_agent on job (org_id, agent_id, created_at desc, id desc);
-- Whether anything is due is one look, however many jobs wait for a later time.
create index idx_job_due on job (app, runnable_at) where (runnable_at is not null);
create index idx_job_leased on job (org_id, agent_id) where (worker_id is not null);
create index idx_job_list on job (org_id, created_at desc, id desc);
create index idx_job_queue on job (app, org_id, agent_id, queue, runnable_at) where (runnable_at is not null);
create index idx_job_resubmitted_from on job (org_id, resubmitted_from) where (resubmitted_from is not null);
create index idx_job_session on job (org_id, session_id, created_at desc, id desc);
create index idx_job_status on job (org_id, status, created_at desc, id desc);
create index idx_job_worker on job (worker_id) where (worker_id is not null);
create unique index uq_job_open_conversation on job (org_id, session_id) where ((kind = 'conversation') and (status not in
  ('COMPLETED', 'FAILED', 'CANCELLED')));
alter table job add primary key (org_id, id);
alter table job add constraint fk_job_resubmitted_from foreign key (org_id, resubmitted_from) references job (org_id, id);
create policy claimer on job to cortex_claimer using (true) with check (false);
create policy claimer_writes_nothing on job as restrictive for update to cortex_claimer using (true) with check (false);
create policy scheduler_of_waits on job for select to cortex_scheduler using (true);
grant select, insert, update (status, retry_count, next_retry_at, open_approvals, error_message, updated_at, finished_at,
  checkpoint, checkpoint_mac, worker_id, epoch, write_seq, leased_at, runnable_at, wake_at, holds, held_at, cancel_requested_at,
  cancel_reason, deaths, running_seconds, step_index, result, hand_backs, memory) on job to cortex_app;
grant select (org_id, id, agent_id, app, worker_id, epoch, runnable_at, queue, holds, cancel_requested_at, deaths, hand_backs),
  update (runnable_at) on job to cortex_claimer;
grant select (org_id, id, status) on job to cortex_scheduler;

create table job_history (
  org_id uuid not null,
  id bigint generated always as identity,
  job_id uuid not null,
  previous_status text,
  new_status text not null,
  metadata jsonb not null default '{}',
  created_at timestamptz not null default plane_now()
);
alter table job_history add primary key (org_id, job_id, id);
grant select, insert on job_history to cortex_app;

create table message (
  org_id uuid not null,
  session_id uuid not null,
  seq bigint not null,
  role text not null,
  text text not null,
  author_id uuid,
  channel_mapping_id uuid,
  job_id uuid,
  created_at timestamptz not null default plane_now(),
  -- The key with which a message was brought, beside its author.
  key_id uuid,
  constraint fk_message_job foreign key (org_id, job_id) references job (org_id, id),
  constraint fk_message_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_message_role check (role in ('user', 'assistant', 'system', 'tool'))
);
alter table message add primary key (org_id, session_id, seq);
grant select, insert on message to cortex_app;

-- Partitioned by month. A unique key over partitions would need the time in it, so the sequence is unique because
-- the session's head hands it out. `prepare_event_partitions` makes the months ahead at every start of a plane
-- process; the default partition takes whatever no month does, so an insert can never fail for want of one.
create table event (
  org_id uuid not null,
  session_id uuid not null,
  seq bigint not null,
  type text not null,
  job_id uuid,
  data jsonb not null default '{}',
  created_at timestamptz not null default plane_now()
) partition by range (created_at);
-- Whoever waits for decisions watches the whole org. Other events do not touch this index.
create index idx_event_approvals on event (org_id, created_at) where (type in ('approval_requested', 'approval_joined',
  'approval_edited', 'approval_decided', 'approval_expired', 'approval_cancelled', 'approval_reminded', 'approval_escalated',
  'approval_voted', 'approval_delegated', 'effect_settled'));
alter table event add primary key (org_id, session_id, seq, created_at);
grant select, insert on event to cortex_app;

create table event_default partition of event default;

-- One chain per session, and one for the org itself (session_id null).
create table audit_entry (
  org_id uuid not null,
  chain_id uuid generated always as (coalesce(session_id, org_id)) stored not null,
  session_id uuid,
  seq bigint not null,
  action text not null,
  body bytea,
  body_hash bytea not null,
  hash bytea not null,
  created_at timestamptz not null,
  xid xid8 default pg_current_xact_id(),
  -- Entries that are there stay as they are, of format 1. Within a chain the format never goes back.
  format smallint not null default 1,
  job_id uuid
);
create index idx_audit_entry_xid on audit_entry (org_id, xid);
alter table audit_entry add primary key (org_id, chain_id, seq);
create policy scheduler on audit_entry for select to cortex_scheduler using (true);
grant select, insert on audit_entry to cortex_app;
grant select (org_id, xid) on audit_entry to cortex_scheduler;

-- The answer to a request that carried an Idempotency-Key, written in the transaction that it answers.
create table idempotency (
  org_id uuid not null,
  caller_id uuid not null,
  verb text not null,
  key text not null,
  fingerprint bytea not null,
  result jsonb,
  created_at timestamptz not null default plane_now()
);
alter table idempotency add primary key (org_id, caller_id, verb, key);
grant select, insert, update on idempotency to cortex_app;

create table worker (
  id uuid not null,
  name text not null,
  host text not null,
  pid integer not null,
  apps text[] not null,
  concurrency integer not null,
  started_at timestamptz not null default plane_now(),
  expires_at timestamptz not null,
  stopped_at timestamptz
) with (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');
alter table worker add primary key (id);
grant select, insert, delete, update (expires_at, stopped_at) on worker to cortex_app;
grant select on worker to cortex_claimer;

-- What a tool was when a worker published it. A call names the digest of the version that it was made for.
create table tool_version (
  app text not null,
  name text not null,
  digest text not null,
  description text not null,
  parameters jsonb not null,
  read_only boolean not null,
  risk text not null,
  timeout_seconds double precision not null,
  on_uncertain text,
  published_at timestamptz not null default plane_now(),
  server text,
  remote_name text,
  implementation text,
  hints jsonb,
  constraint chk_tool_version_digest check (digest ~ '^[a-f0-9]{64}$')
);
-- The versions of a tool by its name, whatever app publishes it.
create index idx_tool_version_name on tool_version (name, app, published_at desc);
alter table tool_version add primary key (app, name, digest);
grant select, insert, update (published_at) on tool_version to cortex_app;

-- The fingerprint of the master key: a process with another key would find every checkpoint forged.
create table plane_key (
  singleton boolean not null default true,
  fingerprint bytea not null,
  previous bytea,
  -- The newest orgs come first: this one and all before it are done.
  resealed_org_created_at timestamptz,
  resealed_org uuid,
  -- In the org after it, jobs up to this one are done.
  resealed_job uuid,
  constraint chk_plane_key_singleton check (singleton)
);
alter table plane_key add primary key (singleton);
grant select, insert, update (fingerprint, previous, resealed_org_created_at, resealed_org, resealed_job) on plane_key to
  cortex_app;

create table step (
  org_id uuid not null,
  job_id uuid not null,
  step_index integer not null,
  message_seq bigint not null,
  response jsonb not null,
  prompt_tokens integer not null,
  completion_tokens integer not null,
  started_at timestamptz not null,
  created_at timestamptz not null default plane_now(),
  agent_id uuid,
  model text,
  cache_read_tokens bigint,
  cache_write_tokens bigint,
  cost_micros bigint,
  estimated boolean,
  seconds double precision
);
create index idx_step_usage on step (org_id, agent_id, created_at) include (prompt_tokens, completion_tokens, cost_micros) where
  (model is not null);
alter table step add primary key (org_id, job_id, step_index);
grant select, insert on step to cortex_app;

-- A call of a tool. Where it has side effects, the row is there before the call is sent (the intent), names what
-- authorised it, and says until when it may be sent; the outcome is written after it. A read-only call is written
-- with its result.
create table tool_call (
  org_id uuid not null,
  id uuid not null,
  job_id uuid not null,
  step_index integer not null,
  "position" integer not null,
  tool_name text not null,
  tool_digest text,
  arguments jsonb not null,
  input_hash bytea not null,
  read_only boolean not null,
  on_uncertain text,
  status text not null,
  attempt integer not null default 1,
  dispatch_before timestamptz,
  settle_after timestamptz,
  result jsonb,
  result_id uuid,
  error text,
  settled_by text,
  created_at timestamptz not null default plane_now(),
  finished_at timestamptz,
  edited boolean not null default false,
  -- The verdict about a call, and the rule that gave it, are columns of the call: a step writes one row less. Earlier
  -- verdicts about the same call are on the audit trail.
  verdict text,
  rule text,
  granted boolean not null default false,
  -- A person refused the call, or let its request expire. As a column, so that the outcome of a call changes nothing that an index is
  -- about: such an update stays on its page and writes no index entries.
  turned_down boolean not null default false,
  constraint uq_tool_call_position unique (org_id, job_id, step_index, "position"),
  constraint chk_tool_call check (tool_call_is_sound(status, (finished_at is not null), length(input_hash), read_only, verdict,
    (rule is not null), ((dispatch_before is not null) and (settle_after is not null)), on_uncertain, granted))
) with (fillfactor='55');
-- A simulation replays the newest calls of an org: without this it would read all that were ever made.
create index idx_tool_call_time on tool_call (org_id, created_at desc, id desc) where (created_at > '-infinity'::timestamptz);
-- Whether somebody said no to the very same before.
create index idx_tool_call_turned_down on tool_call (org_id, job_id, tool_name, input_hash) where turned_down;
alter table tool_call add primary key (org_id, id);
grant select, insert, update (tool_digest, arguments, input_hash, on_uncertain, status, attempt, dispatch_before, settle_after,
  result, result_id, error, settled_by, finished_at, edited, verdict, rule, granted, turned_down) on tool_call to cortex_app;

-- Results that are too large for a row that is read with every step.
create table stored_result (
  org_id uuid not null,
  id uuid not null,
  job_id uuid not null,
  content bytea not null,
  created_at timestamptz not null default plane_now()
);
alter table stored_result alter column content set storage external;
alter table stored_result add primary key (org_id, id);
grant select, insert on stored_result to cortex_app;

create table policy_version (
  org_id uuid not null,
  version bigint not null,
  source text not null,
  digest text not null,
  rows integer not null,
  note text,
  applied_by text not null,
  applied_by_id uuid,
  created_at timestamptz not null default plane_now(),
  mac bytea,
  constraint policy_version_org_id_fkey foreign key (org_id) references org (id),
  constraint chk_policy_version_counts check ((version > 0) and (rows >= 0)),
  constraint chk_policy_version_digest check (digest ~ '^[a-f0-9]{64}$')
);
alter table policy_version add primary key (org_id, version);
grant select, insert, update (mac) on policy_version to cortex_app;

-- A team is named and not referred to: what was applied stays readable after the team is gone.
create table policy (
  org_id uuid not null,
  version bigint not null,
  "position" integer not null,
  level text not null,
  team_id uuid,
  team text,
  name text not null,
  action_type text not null,
  target text not null,
  effect text not null,
  condition text,
  required_clearance integer,
  template text,
  timeout_seconds integer,
  reminder_seconds integer,
  approvers jsonb,
  on_deny text,
  self_approval boolean,
  final boolean not null,
  channels text[],
  quorum jsonb,
  escalation_seconds integer,
  escalate_to jsonb,
  standing boolean,
  constraint fk_policy_version foreign key (org_id, version) references policy_version (org_id, version),
  constraint chk_policy_clearance check (required_clearance between 0 and 1000),
  constraint chk_policy_effect check (effect in ('allow', 'deny', 'requires_approval')),
  constraint chk_policy_escalation check (escalation_seconds between 0 and 604800),
  constraint chk_policy_level check (((level = 'org') and (team_id is null) and (team is null)) or ((level = 'team') and (team_id
    is not null) and (team is not null))),
  constraint chk_policy_on_deny check (on_deny in ('fail', 'continue')),
  constraint chk_policy_template check (template in ('dev_only', 'dev_review', 'full_pipeline', 'critical_path')),
  constraint chk_policy_times check ((timeout_seconds between 1 and 604800) and (reminder_seconds between 0 and 604800))
);
alter table policy add primary key (org_id, version, "position");
grant select, insert on policy to cortex_app;

create table platform_policy (
  "position" integer not null,
  name text not null,
  action_type text not null default 'tool_call',
  target text not null,
  effect text not null,
  condition text,
  required_clearance integer,
  template text,
  timeout_seconds integer,
  reminder_seconds integer,
  approvers jsonb,
  on_deny text,
  self_approval boolean,
  final boolean not null default false,
  channels text[],
  quorum jsonb,
  escalation_seconds integer,
  escalate_to jsonb,
  standing boolean,
  constraint uq_platform_policy unique (action_type, target, name),
  constraint chk_platform_policy_clearance check (required_clearance between 0 and 1000),
  constraint chk_platform_policy_effect check (effect in ('allow', 'deny', 'requires_approval')),
  constraint chk_platform_policy_escalation check (escalation_seconds between 0 and 604800),
  constraint chk_platform_policy_on_deny check (on_deny in ('fail', 'continue')),
  constraint chk_platform_policy_template check (template in ('dev_only', 'dev_review', 'full_pipeline', 'critical_path')),
  constraint chk_platform_policy_times check ((timeout_seconds between 1 and 604800) and (reminder_seconds between 0 and 604800))
);
alter table platform_policy add primary key ("position");
grant select on platform_policy to cortex_app;

-- Raised by a trigger with every change to the platform's rows.
create table platform_policy_version (
  singleton boolean not null default true,
  version bigint not null,
  constraint chk_platform_policy_version_singleton check (singleton)
);
alter table platform_policy_version add primary key (singleton);
grant select on platform_policy_version to cortex_app;

create table approval_request (
  org_id uuid not null,
  id uuid not null,
  kind text not null,
  status text not null default 'pending',
  version integer not null default 1,
  session_id uuid not null,
  job_id uuid not null,
  agent_id uuid not null,
  step_index integer not null,
  action_type text not null,
  tool_name text not null,
  tool_digest text,
  target text not null,
  arguments jsonb not null,
  input_hash bytea not null,
  original_arguments jsonb,
  original_hash bytea,
  invocations integer not null default 1,
  risk text not null,
  action_summary text not null,
  agent_says text,
  asked_for text,
  question text,
  rule text not null,
  policy_version text not null,
  template text not null,
  required_clearance integer not null,
  timeout_seconds integer not null,
  approvers jsonb not null,
  on_deny text not null,
  self_approval boolean not null,
  owner_id uuid,
  caused_by uuid,
  -- Everybody whose words the job had read when it asked; none of them approves it where others must.
  causes uuid[] not null default '{}'::uuid[],
  -- Identical calls join only where the same terms hold for them.
  terms_hash bytea not null,
  escalation_level integer not null default 0,
  channels_dispatched text[] not null default '{dashboard}',
  requested_at timestamptz not null,
  deadline timestamptz,
  remind_at timestamptz,
  reminded_at timestamptz,
  -- When a scheduler must look at it; null once it is resolved.
  next_action_at timestamptz,
  resolved_at timestamptz,
  resolved_by uuid,
  resolved_by_name text,
  resolution_reason text,
  resolved_via text,
  quorum jsonb not null default '{"roles": [], "votes": 1}',
  -- Who is asked besides, level by level, and when.
  escalations jsonb not null default '[]',
  escalate_at timestamptz[] not null default '{}'::timestamptz[],
  delegated uuid[] not null default '{}'::uuid[],
  channels text[],
  standing boolean not null default false,
  action text,
  details jsonb,
  -- As the card shows them: member, name and why. `causes` are the members among them.
  caused jsonb not null default '[]',
  -- The request that let the call be sent, on the card that asks whether it happened: its approvers, clearance, quorum and rule about
  -- self-approval are this card's. Null where the call needed no approval.
  settles uuid,
  constraint fk_approval_request_job foreign key (org_id, job_id) references job (org_id, id),
  constraint fk_approval_request_resolved_by foreign key (org_id, resolved_by) references user_account (org_id, id),
  constraint fk_approval_request_session foreign key (org_id, session_id) references session (org_id, id),
  -- A call that nobody decides ends at its deadline, which a scheduler looks for; no other row costs it anything.
  constraint chk_approval_request_deadline check ((kind <> 'call') or ((deadline is not null) and ((status = 'pending') =
    (next_action_at is not null)))),
  -- Whoever decided keeps their name here, whatever becomes of their account.
  constraint chk_approval_request_decider check ((status not in ('approved', 'denied')) or (resolved_by_name is not null)),
  constraint chk_approval_request_end check ((status = 'pending') = (resolved_at is null)),
  constraint chk_approval_request_escalations check ((jsonb_array_length(escalations) = cardinality(escalate_at)) and
    (escalation_level <= cardinality(escalate_at))),
  constraint chk_approval_request_hashes check ((length(input_hash) = 32) and (length(terms_hash) = 32)),
  constraint chk_approval_request_kind check (kind in ('call', 'uncertain_effect')),
  constraint chk_approval_request_on_deny check (on_deny in ('fail', 'continue')),
  constraint chk_approval_request_status check (status in ('pending', 'approved', 'denied', 'expired', 'cancelled')),
  constraint chk_approval_request_summary check (length(trim(both from action_summary)) > 0),
  constraint chk_approval_request_template check (template in ('dev_only', 'dev_review', 'full_pipeline', 'critical_path'))
) with (fillfactor='85');
create index idx_approval_request_due on approval_request (next_action_at) where (next_action_at is not null);
create index idx_approval_request_id on approval_request (id);
create index idx_approval_request_job on approval_request (org_id, job_id);
create index idx_approval_request_list on approval_request (org_id, requested_at desc, id desc);
-- What an inbox shows as decided lately.
create index idx_approval_request_resolved on approval_request (org_id, resolved_at desc) where (resolved_at is not null);
create index idx_approval_request_resolved_by on approval_request (org_id, resolved_by) where (resolved_by is not null);
create index idx_approval_request_session on approval_request (org_id, session_id, requested_at desc, id desc);
create index idx_approval_request_settles on approval_request (org_id, settles) where (settles is not null);
create index idx_approval_request_status on approval_request (org_id, status, requested_at desc, id desc);
create index idx_approval_request_tool on approval_request (org_id, tool_name, resolved_at desc) where (status in ('approved',
  'denied'));
-- The inbox reads the most urgent requests of an org in this order, however many are pending. What has no deadline comes first: as a
-- time, so that a look can continue after a request, and with `case`, because `coalesce` is no condition of an index under row-level
-- security. Only the inbox names the condition on `requested_at`: in a new plane, without statistics, the planner took this index for
-- other queries too, and read everything that is pending.
create index idx_approval_request_urgent on approval_request (org_id, ( case when (deadline is null) then '-infinity'::timestamptz
  else deadline end), requested_at, id) where ((status = 'pending') and (requested_at > '-infinity'::timestamptz));
create unique index uq_approval_request_pending on approval_request (org_id, session_id, tool_name, input_hash, terms_hash) where
  ((status = 'pending') and (kind = 'call'));
alter table approval_request add primary key (org_id, id);
alter table approval_request add constraint fk_approval_request_settles foreign key (org_id, settles) references approval_request
  (org_id, id);
create policy resolver on approval_request for select to cortex_resolver using (true);
create policy scheduler on approval_request for select to cortex_scheduler using (true);
grant select, insert, update (status, version, arguments, input_hash, original_arguments, original_hash, invocations, approvers,
  causes, escalation_level, channels_dispatched, reminded_at, next_action_at, resolved_at, resolved_by, resolved_by_name,
  resolution_reason, resolved_via, delegated, caused) on approval_request to cortex_app;
grant select (org_id, id, next_action_at) on approval_request to cortex_scheduler;
grant select (org_id, id) on approval_request to cortex_resolver;

-- The calls that a request decides. Identical calls share one request.
create table approval_invocation (
  org_id uuid not null,
  approval_id uuid not null,
  call_id uuid not null,
  job_id uuid not null,
  created_at timestamptz not null default plane_now(),
  constraint fk_approval_invocation_approval foreign key (org_id, approval_id) references approval_request (org_id, id)
);
create index idx_approval_invocation_call on approval_invocation (org_id, call_id, created_at desc);
create index idx_approval_invocation_job on approval_invocation (org_id, job_id);
alter table approval_invocation add primary key (org_id, approval_id, call_id);
grant select, insert on approval_invocation to cortex_app;

-- One vote per person and version; an edit makes a new version, for which earlier votes do not count.
create table approval_vote (
  org_id uuid not null,
  approval_id uuid not null,
  version integer not null,
  user_account_id uuid not null,
  member text not null,
  decision text not null,
  reason text,
  channel text not null,
  created_at timestamptz not null,
  -- What the vote says about an uncertain call: the verdict, and the digest of its result. Votes count together where they say the same.
  answer text,
  constraint fk_approval_vote_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_approval_vote_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint chk_approval_vote_decision check (decision in ('approved', 'denied'))
);
create index idx_approval_vote_account on approval_vote (org_id, user_account_id);
alter table approval_vote add primary key (org_id, approval_id, version, user_account_id);
grant select, insert, update (decision, reason, channel, created_at, answer) on approval_vote to cortex_app;

-- The right to send one exact call once. It is consumed by the commit that writes the call's intent.
create table approval_grant (
  org_id uuid not null,
  call_id uuid not null,
  approval_id uuid not null,
  tool_digest text not null,
  input_hash bytea not null,
  created_at timestamptz not null,
  expires_at timestamptz not null,
  consumed_at timestamptz,
  constraint fk_approval_grant_approval foreign key (org_id, approval_id) references approval_request (org_id, id)
);
create index idx_approval_grant_approval on approval_grant (org_id, approval_id);
alter table approval_grant add primary key (org_id, call_id, approval_id);
grant select, insert, update (consumed_at) on approval_grant to cortex_app;

-- The read model of an approval's life, written by the transactions that change it.
create table approval_event (
  org_id uuid not null,
  id bigint generated always as identity,
  approval_id uuid not null,
  event_type text not null,
  channel text,
  actor_member_id uuid,
  actor text,
  idempotency_key text,
  payload jsonb not null default '{}',
  created_at timestamptz not null,
  -- How often the same happened: after the tenth refused decision of a person on a card, one row counts on.
  times integer not null default 1,
  constraint fk_approval_event_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint chk_approval_event_times check (times >= 1),
  constraint chk_approval_event_type check (event_type in ('requested', 'joined', 'dispatched', 'delegated', 'voted', 'edited',
    'approved', 'denied', 'expired', 'cancelled', 'reminded', 'escalated', 'answered', 'refused', 'undeliverable',
    'channel_duplicate', 'channel_conflict'))
);
create unique index uq_approval_event_key on approval_event (org_id, approval_id, idempotency_key) where (idempotency_key is not
  null);
alter table approval_event add primary key (org_id, approval_id, id);
grant select, insert, update (times) on approval_event to cortex_app;

create table login_link (
  org_id uuid not null,
  id uuid not null,
  user_account_id uuid not null,
  secret_hash bytea not null,
  -- Whoever made it, by name: what is done with it is on the audit trail under the name of its member.
  issued_by text not null,
  created_at timestamptz not null default plane_now(),
  expires_at timestamptz not null,
  used_at timestamptz,
  key_id uuid,
  mac bytea,
  constraint uq_login_link_secret unique (secret_hash),
  constraint fk_login_link_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_login_link_key foreign key (org_id, key_id) references api_key (org_id, id),
  constraint chk_login_link_hash check (length(secret_hash) = 32)
);
create index idx_login_link_account on login_link (org_id, user_account_id);
create index idx_login_link_key on login_link (org_id, key_id) where (key_id is not null);
alter table login_link add primary key (org_id, id);
create policy resolver on login_link for select to cortex_resolver using (true);
grant select, insert, delete, update (used_at) on login_link to cortex_app;
grant select (org_id, id, secret_hash) on login_link to cortex_resolver;

create table browser_session (
  org_id uuid not null,
  id uuid not null,
  user_account_id uuid not null,
  secret_hash bytea not null,
  created_at timestamptz not null default plane_now(),
  last_seen_at timestamptz not null default plane_now(),
  expires_at timestamptz not null,
  key_id uuid,
  mac bytea,
  constraint uq_browser_session_secret unique (secret_hash),
  constraint fk_browser_session_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_browser_session_key foreign key (org_id, key_id) references api_key (org_id, id),
  constraint chk_browser_session_hash check (length(secret_hash) = 32)
);
create index idx_browser_session_account on browser_session (org_id, user_account_id);
create index idx_browser_session_key on browser_session (org_id, key_id) where (key_id is not null);
alter table browser_session add primary key (org_id, id);
create policy resolver on browser_session for select to cortex_resolver using (true);
grant select, insert, delete, update (last_seen_at) on browser_session to cortex_app;
grant select (org_id, id, secret_hash) on browser_session to cortex_resolver;

-- What a model says while it still speaks. Numbered in the session's sequence of events like everything else, but kept
-- apart from them: events are never changed, and these rows disappear once the step that they belong to is durable.
create table text_chunk (
  org_id uuid not null,
  session_id uuid not null,
  seq bigint not null,
  job_id uuid not null,
  step_index integer not null,
  epoch bigint not null,
  text text not null,
  created_at timestamptz not null default plane_now()
) with (autovacuum_vacuum_scale_factor='0.05');
create index idx_text_chunk_step on text_chunk (org_id, job_id, step_index);
alter table text_chunk add primary key (org_id, session_id, seq);
create policy scheduler on text_chunk for select to cortex_scheduler using (true);
create policy scheduler_deletes on text_chunk for delete to cortex_scheduler using (true);
grant select, insert, delete on text_chunk to cortex_app;
grant delete, select (org_id, session_id, seq, created_at) on text_chunk to cortex_scheduler;

-- One hop each; a chain is several rows. People keep their names here, whatever becomes of their accounts.
create table approval_delegation (
  org_id uuid not null,
  id bigint generated always as identity,
  approval_id uuid not null,
  from_member_id uuid not null,
  from_member text not null,
  to_member_id uuid not null,
  to_member text not null,
  to_clearance integer not null,
  reason text,
  automatic boolean not null,
  created_at timestamptz not null,
  -- Nobody hands on what they do not have any more.
  constraint uq_approval_delegation_from unique (org_id, approval_id, from_member_id),
  constraint fk_approval_delegation_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_approval_delegation_from foreign key (org_id, from_member_id) references user_account (org_id, id),
  constraint fk_approval_delegation_to foreign key (org_id, to_member_id) references user_account (org_id, id),
  constraint chk_approval_delegation_self check (from_member_id <> to_member_id)
);
create index idx_approval_delegation_from on approval_delegation (org_id, from_member_id);
create index idx_approval_delegation_to on approval_delegation (org_id, to_member_id);
alter table approval_delegation add primary key (org_id, approval_id, id);
grant select, insert on approval_delegation to cortex_app;

-- Out of office: what is asked of somebody in this time goes to somebody else.
create table member_absence (
  org_id uuid not null,
  id uuid not null,
  user_account_id uuid not null,
  delegate_id uuid not null,
  starts_at timestamptz not null,
  ends_at timestamptz not null,
  reason text,
  cancelled_at timestamptz,
  created_by text not null,
  created_at timestamptz not null default plane_now(),
  constraint fk_member_absence_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_member_absence_delegate foreign key (org_id, delegate_id) references user_account (org_id, id),
  constraint chk_member_absence_self check (user_account_id <> delegate_id),
  constraint chk_member_absence_span check (starts_at < ends_at)
);
create index idx_member_absence_account on member_absence (org_id, user_account_id, ends_at) where (cancelled_at is null);
create index idx_member_absence_delegate on member_absence (org_id, delegate_id);
create index idx_member_absence_list on member_absence (org_id, created_at desc, id desc);
alter table member_absence add primary key (org_id, id);
grant select, insert, update (cancelled_at) on member_absence to cortex_app;

create table notification (
  org_id uuid not null,
  id uuid not null,
  seq bigint generated always as identity,
  kind text not null,
  approval_id uuid,
  connection_id uuid not null,
  channel_type text not null,
  mapping_id uuid,
  user_account_id uuid,
  address text not null,
  -- What one person is told on one connection is told in order, by one notifier at a time.
  lane bigint generated always as (hashtextextended((((connection_id)::text || ' ') || address), (2)::bigint)) stored not null,
  -- What its message needs besides; no secrets: those are made when it is rendered.
  data jsonb not null default '{}',
  desired_version integer not null default 1,
  rendered_version integer not null default 0,
  status text not null default 'pending',
  attempts integer not null default 0,
  -- When somebody must send it; null where nothing is to be sent.
  next_attempt_at timestamptz,
  taken_until timestamptz,
  taken_by uuid,
  last_error text,
  message_ref text,
  -- What the channel remembered of its last message, and what the plane did: of which state of the request it spoke.
  shown jsonb not null default '{}',
  said jsonb not null default '{}',
  -- When a send was begun for the first time. What became of it may be unknown.
  tried_at timestamptz,
  sent_at timestamptz,
  created_at timestamptz not null,
  -- A message to the agent is about a call, and to nobody in person.
  call_id uuid,
  constraint fk_notification_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_notification_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_notification_connection foreign key (org_id, connection_id, channel_type) references channel_connection (org_id,
    id, channel_type),
  constraint fk_notification_mapping foreign key (org_id, mapping_id) references channel_mapping (org_id, id),
  constraint chk_notification_address check (length(trim(both from address)) > 0),
  constraint chk_notification_attempts check (attempts >= 0),
  constraint chk_notification_callback check (((kind = 'callback') = (call_id is not null)) and ((kind in ('callback', 'notice'))
    = (user_account_id is null)) and ((kind not in ('callback', 'notice')) or ((mapping_id is null) and (channel_type =
    'webhook')))),
  constraint chk_notification_dead check ((status <> 'dead') or (last_error is not null)),
  constraint chk_notification_delivered check ((status <> 'delivered') or (rendered_version = desired_version)),
  -- A steward is told over a webhook of the org, and not in person.
  constraint chk_notification_kind check (kind in ('approval', 'invitation', 'callback', 'notice')),
  constraint chk_notification_mapping check ((kind <> 'approval') or (mapping_id is not null)),
  constraint chk_notification_sent check ((sent_at is null) or (tried_at is not null)),
  constraint chk_notification_status check (status in ('pending', 'delivered', 'dead')),
  constraint chk_notification_subject check ((kind in ('approval', 'callback')) = (approval_id is not null)),
  constraint chk_notification_taken check ((taken_until is null) = (taken_by is null)),
  constraint chk_notification_versions check ((0 <= rendered_version) and (rendered_version <= desired_version)),
  -- What is pending has a time, and nothing else costs a notifier anything.
  constraint chk_notification_work check ((status = 'pending') = (next_attempt_at is not null))
) with (fillfactor='85');
create index idx_notification_account on notification (org_id, user_account_id);
create index idx_notification_connection on notification (org_id, connection_id);
-- Is anything due at all? Which org is next? Which lane, and what in it?
create index idx_notification_due on notification (next_attempt_at) where (next_attempt_at is not null);
create index idx_notification_lane on notification (org_id, lane, next_attempt_at, seq) where (next_attempt_at is not null);
create index idx_notification_list on notification (org_id, created_at desc, id desc);
create index idx_notification_mapping on notification (org_id, mapping_id) where (mapping_id is not null);
create index idx_notification_org on notification (org_id, next_attempt_at) where (next_attempt_at is not null);
create index idx_notification_status on notification (org_id, status, created_at desc, id desc) where (status <> 'delivered');
create index idx_notification_taken on notification (org_id, lane) where (taken_until is not null);
-- Once for each request about a call.
create unique index uq_notification_call on notification (org_id, call_id, approval_id) where (call_id is not null);
-- Nobody is told twice of one request on one address.
create unique index uq_notification_recipient on notification (org_id, approval_id, mapping_id) where (approval_id is not null);
alter table notification add primary key (org_id, id);
create policy scheduler on notification for select to cortex_scheduler using (true);
create policy scheduler_takes on notification for update to cortex_scheduler using (true) with check (true);
grant select, insert, update (desired_version, rendered_version, status, attempts, next_attempt_at, taken_until, taken_by,
  last_error, message_ref, shown, said, tried_at, sent_at) on notification to cortex_app;
grant select (org_id, id, seq, channel_type, lane, next_attempt_at, taken_until), update (taken_until, taken_by) on notification
  to cortex_scheduler;

create table inbound_event (
  org_id uuid not null,
  connection_id uuid not null,
  -- The sender's own id for it.
  event_id text not null,
  -- SHA-256 of the body: an id stands for one body.
  body_hash bytea not null,
  -- Null until it is known. Until then a second delivery does the work again, which is done once by its key.
  answer jsonb,
  received_at timestamptz not null default plane_now(),
  answered_at timestamptz,
  constraint fk_inbound_event_connection foreign key (org_id, connection_id) references channel_connection (org_id, id),
  constraint chk_inbound_event_answered check ((answer is null) = (answered_at is null)),
  constraint chk_inbound_event_hash check (length(body_hash) = 32),
  constraint chk_inbound_event_id check ((length(event_id) >= 1) and (length(event_id) <= 255))
);
create index idx_inbound_event_received on inbound_event (received_at);
alter table inbound_event add primary key (org_id, connection_id, event_id);
create policy scheduler on inbound_event for select to cortex_scheduler using (true);
create policy scheduler_deletes on inbound_event for delete to cortex_scheduler using (true);
grant select, insert, update (answer, answered_at) on inbound_event to cortex_app;
grant delete, select (org_id, connection_id, event_id, received_at) on inbound_event to cortex_scheduler;

create table identity_code (
  org_id uuid not null,
  id uuid not null,
  -- Who it is about.
  user_account_id uuid not null,
  -- A link in a mail proves this one. A code that is typed on another channel proves whoever types it.
  mapping_id uuid,
  code_hash bytea not null,
  -- An invitation logs in whoever opens it; an address that somebody added is confirmed by somebody who is logged in.
  purpose text not null,
  -- By name.
  issued_by text not null,
  created_at timestamptz not null default plane_now(),
  expires_at timestamptz not null,
  used_at timestamptz,
  mac bytea,
  constraint uq_identity_code unique (code_hash),
  constraint fk_identity_code_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_identity_code_mapping foreign key (org_id, mapping_id) references channel_mapping (org_id, id),
  constraint chk_identity_code_hash check (length(code_hash) = 32),
  constraint chk_identity_code_mapping check ((purpose = 'sender') = (mapping_id is null)),
  constraint chk_identity_code_purpose check (purpose in ('invitation', 'address', 'sender'))
);
create index idx_identity_code_account on identity_code (org_id, user_account_id);
create index idx_identity_code_mapping on identity_code (org_id, mapping_id) where (mapping_id is not null);
alter table identity_code add primary key (org_id, id);
create policy resolver on identity_code for select to cortex_resolver using (true);
grant select, insert, delete, update (used_at) on identity_code to cortex_app;
grant select (org_id, id, code_hash) on identity_code to cortex_resolver;

-- Codes that were typed wrong, by sender, so that nobody tries them all.
create table identity_guess (
  org_id uuid not null,
  connection_id uuid not null,
  sender text not null,
  wrong integer not null,
  forget_at timestamptz not null,
  constraint fk_identity_guess_connection foreign key (org_id, connection_id) references channel_connection (org_id, id)
);
create index idx_identity_guess_forget on identity_guess (org_id, connection_id, forget_at);
alter table identity_guess add primary key (org_id, connection_id, sender);
grant select, insert, delete, update (wrong, forget_at) on identity_guess to cortex_app;

-- One per approver and message. It decides what that message showed: `version` and `input_hash`.
create table approval_token (
  org_id uuid not null,
  id uuid not null,
  approval_id uuid not null,
  user_account_id uuid not null,
  -- The message that carries it. Messages may be forgotten before their tokens, so nothing refers to them.
  notification_id uuid,
  token_hash bytea not null,
  version integer not null,
  input_hash bytea not null,
  created_at timestamptz not null default plane_now(),
  expires_at timestamptz not null,
  used_at timestamptz,
  mac bytea,
  constraint uq_approval_token_hash unique (token_hash),
  constraint fk_approval_token_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint fk_approval_token_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint chk_approval_token_hashes check ((length(token_hash) = 32) and (length(input_hash) = 32))
);
create index idx_approval_token_account on approval_token (org_id, user_account_id, approval_id);
-- Whichever of the two is chosen for the tokens of a voter, it finds few: one approver may have thousands.
create index idx_approval_token_approval on approval_token (org_id, approval_id);
create index idx_approval_token_expiry on approval_token (expires_at);
alter table approval_token add primary key (org_id, id);
create policy resolver on approval_token for select to cortex_resolver using (true);
create policy scheduler on approval_token for select to cortex_scheduler using (true);
grant select, insert, delete, update (used_at) on approval_token to cortex_app;
grant select (org_id, id, token_hash) on approval_token to cortex_resolver;
grant select (org_id, id, expires_at) on approval_token to cortex_scheduler;

-- One current secret for each purpose; those before it are accepted until `retire_at`.
create table signing_secret (
  org_id uuid not null,
  id uuid not null,
  purpose text not null,
  sealed bytea not null,
  created_at timestamptz not null default plane_now(),
  retire_at timestamptz,
  constraint fk_signing_secret_org foreign key (org_id) references org (id),
  constraint chk_signing_secret_purpose check (purpose = 'callback')
);
create index idx_signing_secret_age on signing_secret (created_at) where (retire_at is null);
create index idx_signing_secret_purpose on signing_secret (org_id, purpose, created_at desc);
create index idx_signing_secret_retired on signing_secret (retire_at) where (retire_at is not null);
create unique index uq_signing_secret_current on signing_secret (org_id, purpose) where (retire_at is null);
alter table signing_secret add primary key (org_id, id);
create policy scheduler on signing_secret for select to cortex_scheduler using (true);
grant select, insert, delete, update (sealed, retire_at) on signing_secret to cortex_app;
grant select (org_id, id, created_at, retire_at) on signing_secret to cortex_scheduler;

create table standing_approval (
  org_id uuid not null,
  id uuid not null,
  session_id uuid not null,
  agent_id uuid not null,
  tool_name text not null,
  tool_digest text not null,
  input_hash bytea,
  condition text,
  max_calls integer,
  used_calls integer not null default 0,
  expires_at timestamptz not null,
  -- People keep their names here, whatever becomes of their accounts.
  granted_by text not null,
  granted_by_id uuid not null,
  approval_id uuid not null,
  required jsonb not null,
  reason text,
  revoked_at timestamptz,
  revoked_by text,
  revocation_reason text,
  created_at timestamptz not null,
  last_used_at timestamptz,
  constraint uq_standing_approval_approval unique (org_id, approval_id),
  constraint fk_standing_approval_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint fk_standing_approval_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_standing_approval_granter foreign key (org_id, granted_by_id) references user_account (org_id, id),
  constraint fk_standing_approval_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_standing_approval_calls check (((max_calls between 1 and 1000) and (used_calls between 0 and max_calls)) or
    ((max_calls is null) and (used_calls >= 0))),
  constraint chk_standing_approval_condition check ((length(condition) >= 1) and (length(condition) <= 2000)),
  constraint chk_standing_approval_end check ((expires_at > created_at) and (expires_at <= (created_at + '7 days'))),
  constraint chk_standing_approval_hash check (length(input_hash) = 32),
  constraint chk_standing_approval_revoked check ((revoked_at is null) = (revoked_by is null))
) with (fillfactor='80');
create index idx_standing_approval_agent on standing_approval (org_id, agent_id);
create index idx_standing_approval_granter on standing_approval (org_id, granted_by_id);
create index idx_standing_approval_list on standing_approval (org_id, created_at desc, id desc);
create index idx_standing_approval_of_session on standing_approval (org_id, session_id, created_at desc, id desc);
create index idx_standing_approval_session on standing_approval (org_id, session_id, tool_name) where (revoked_at is null);
alter table standing_approval add primary key (org_id, id);
grant select, insert, update (used_calls, revoked_at, revoked_by, revocation_reason, last_used_at) on standing_approval to
  cortex_app;

create table standing_use (
  org_id uuid not null,
  standing_id uuid not null,
  call_id uuid not null,
  created_at timestamptz not null,
  constraint fk_standing_use_call foreign key (org_id, call_id) references tool_call (org_id, id),
  constraint fk_standing_use_standing foreign key (org_id, standing_id) references standing_approval (org_id, id)
);
create index idx_standing_use_call on standing_use (org_id, call_id);
alter table standing_use add primary key (org_id, standing_id, call_id);
grant select, insert on standing_use to cortex_app;

create table signing_key (
  org_id uuid not null,
  id uuid not null,
  public_key bytea not null,
  sealed bytea not null,
  created_at timestamptz not null default plane_now(),
  retired_at timestamptz,
  constraint signing_key_org_id_fkey foreign key (org_id) references org (id),
  constraint chk_signing_key_public check (length(public_key) = 32)
);
create unique index uq_signing_key_active on signing_key (org_id) where (retired_at is null);
alter table signing_key add primary key (org_id, id);
grant select, insert, update (sealed, retired_at) on signing_key to cortex_app;

create table approval_receipt (
  org_id uuid not null,
  approval_id uuid not null,
  key_id uuid not null,
  body bytea not null,
  signature bytea not null,
  created_at timestamptz not null,
  constraint fk_approval_receipt_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_approval_receipt_key foreign key (org_id, key_id) references signing_key (org_id, id),
  constraint chk_approval_receipt_signature check (length(signature) = 64)
);
create index idx_approval_receipt_key on approval_receipt (org_id, key_id);
alter table approval_receipt add primary key (org_id, approval_id);
grant select, insert on approval_receipt to cortex_app;

create table audit_root (
  org_id uuid not null,
  seq bigint not null,
  previous bytea not null,
  body bytea not null,
  hash bytea not null,
  key_id uuid not null,
  signature bytea not null,
  -- How many chains this and all earlier roots cover together.
  chains integer not null,
  -- Everything that this snapshot shows is covered.
  snapshot pg_snapshot,
  created_at timestamptz not null,
  constraint fk_audit_root_key foreign key (org_id, key_id) references signing_key (org_id, id),
  constraint chk_audit_root_lengths check ((length(previous) = 32) and (length(hash) = 32) and (length(signature) = 64)),
  constraint chk_audit_root_seq check (seq > 0)
);
create index idx_audit_root_key on audit_root (org_id, key_id);
alter table audit_root add primary key (org_id, seq);
create policy scheduler on audit_root for select to cortex_scheduler using (true);
grant select, insert on audit_root to cortex_app;
grant select (org_id, seq, snapshot, created_at) on audit_root to cortex_scheduler;

-- The heads that a root covers: the chains that grew since the one before it.
create table audit_root_head (
  org_id uuid not null,
  root_seq bigint not null,
  chain_id uuid not null,
  audit_seq bigint not null,
  hash bytea not null,
  constraint fk_audit_root_head_root foreign key (org_id, root_seq) references audit_root (org_id, seq),
  constraint chk_audit_root_head_hash check (length(hash) = 32)
);
create index idx_audit_root_head_root on audit_root_head (org_id, root_seq);
alter table audit_root_head add primary key (org_id, chain_id, root_seq);
grant select, insert on audit_root_head to cortex_app;

create table model_call (
  org_id uuid not null,
  id uuid not null,
  job_id uuid not null,
  agent_id uuid not null,
  session_id uuid not null,
  step_index integer not null,
  purpose text not null,
  model text not null,
  prompt_tokens bigint not null,
  completion_tokens bigint not null,
  -- Both are part of the prompt.
  cache_read_tokens bigint not null,
  cache_write_tokens bigint not null,
  -- Millionths of a US dollar; null where nobody knows the price.
  cost_micros bigint,
  -- The provider did not say what it counted: the answer broke off.
  estimated boolean not null,
  seconds double precision not null,
  created_at timestamptz not null,
  constraint fk_model_call_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint fk_model_call_job foreign key (org_id, job_id) references job (org_id, id),
  constraint fk_model_call_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_model_call_cost check (cost_micros >= 0),
  constraint chk_model_call_model check ((length(model) >= 1) and (length(model) <= 500)),
  constraint chk_model_call_purpose check ((length(purpose) >= 1) and (length(purpose) <= 100)),
  constraint chk_model_call_seconds check (seconds >= (0)::double precision),
  constraint chk_model_call_step check (step_index >= 0),
  constraint chk_model_call_tokens check ((prompt_tokens >= 0) and (completion_tokens >= 0) and (cache_read_tokens >= 0) and
    (cache_write_tokens >= 0))
);
-- A budget of the day is looked up before every call.
create index idx_model_call_agent on model_call (org_id, agent_id, created_at) include (prompt_tokens, completion_tokens,
  cost_micros);
create index idx_model_call_job on model_call (org_id, job_id);
create index idx_model_call_session on model_call (org_id, session_id);
create index idx_model_call_time on model_call (org_id, created_at);
alter table model_call add primary key (org_id, id);
grant select, insert on model_call to cortex_app;

create table model_key (
  org_id uuid not null,
  provider text not null,
  sealed bytea not null,
  last_characters text not null,
  -- People keep their names here, whatever becomes of their accounts.
  set_by text not null,
  created_at timestamptz not null default plane_now(),
  updated_at timestamptz not null default plane_now(),
  constraint fk_model_key_org foreign key (org_id) references org (id),
  constraint chk_model_key_last check (length(last_characters) = 4),
  constraint chk_model_key_provider check (provider in ('anthropic', 'openai'))
);
alter table model_key add primary key (org_id, provider);
grant select, insert, delete, update (sealed, last_characters, set_by, updated_at) on model_key to cortex_app;

-- What is kept of the part of a conversation that no longer fits into the model's window. Append-only: the newest row is what
-- the next job of the session begins with, the older ones tell how it came about.
create table session_memory (
  org_id uuid not null,
  session_id uuid not null,
  number bigint not null,
  message_seq bigint not null,
  summary text not null,
  facts jsonb not null,
  job_id uuid not null,
  created_at timestamptz not null,
  constraint fk_session_memory_job foreign key (org_id, job_id) references job (org_id, id),
  constraint fk_session_memory_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_session_memory_facts check ((jsonb_typeof(facts) = 'array') and (jsonb_array_length(facts) <= 50)),
  constraint chk_session_memory_message_seq check (message_seq >= 0),
  constraint chk_session_memory_number check (number > 0),
  constraint chk_session_memory_summary check (octet_length(summary) <= 8192)
);
create index idx_session_memory_job on session_memory (org_id, job_id);
alter table session_memory add primary key (org_id, session_id, number);
grant select, insert on session_memory to cortex_app;

create table journal_entry (
  org_id uuid not null,
  job_id uuid not null,
  key text not null,
  "position" integer not null,
  kind text not null,
  name text not null,
  input_hash bytea not null,
  status text not null,
  result jsonb,
  result_id uuid,
  error jsonb,
  created_at timestamptz not null,
  finished_at timestamptz,
  constraint fk_journal_entry_job foreign key (org_id, job_id) references job (org_id, id),
  constraint chk_journal_entry_end check ((status = 'open') = (finished_at is null)),
  constraint chk_journal_entry_error check ((status = 'failed') or (error is null)),
  constraint chk_journal_entry_hash check (length(input_hash) = 32),
  constraint chk_journal_entry_key check ((length(key) >= 1) and (length(key) <= 1000)),
  constraint chk_journal_entry_kind check (kind in ('step', 'tool', 'model', 'approval', 'sleep', 'wait', 'value', 'gather')),
  constraint chk_journal_entry_name check ((length(name) >= 1) and (length(name) <= 200)),
  constraint chk_journal_entry_position check ("position" >= 0),
  constraint chk_journal_entry_status check (status in ('open', 'done', 'failed'))
) with (fillfactor='90');
alter table journal_entry add primary key (org_id, job_id, key);
grant select, insert, update (status, result, result_id, error, finished_at) on journal_entry to cortex_app;

create table signal (
  org_id uuid not null,
  id uuid not null,
  name text not null,
  key text not null,
  payload jsonb not null,
  -- People and programs keep their names here, whatever becomes of their accounts and keys.
  sent_by text not null,
  sender_id uuid not null,
  created_at timestamptz not null,
  -- When everybody who waited was told. More jobs than one transaction wakes are woken by several.
  told_at timestamptz,
  constraint uq_signal_key unique (org_id, name, key),
  constraint signal_org_id_fkey foreign key (org_id) references org (id),
  constraint chk_signal_key check ((length(key) >= 1) and (length(key) <= 255)),
  constraint chk_signal_name check ((length(name) >= 1) and (length(name) <= 200)),
  constraint chk_signal_payload check (pg_column_size(payload) <= (512 * 1024))
);
create index idx_signal_age on signal (created_at);
create index idx_signal_list on signal (org_id, created_at desc, id desc);
create index idx_signal_name on signal (org_id, name, created_at desc, id desc);
create index idx_signal_untold on signal (created_at) where (told_at is null);
alter table signal add primary key (org_id, id);
create policy scheduler on signal for select to cortex_scheduler using (true);
create policy scheduler_deletes on signal for delete to cortex_scheduler using (true);
grant select, insert, update (told_at) on signal to cortex_app;
grant delete, select (org_id, id, created_at, told_at) on signal to cortex_scheduler;

create table job_wait (
  org_id uuid not null,
  job_id uuid not null,
  entry text not null,
  name text not null,
  key text not null,
  created_at timestamptz not null,
  signal_id uuid,
  payload jsonb,
  arrived_at timestamptz,
  -- Whose signal came. What arrived stays with its job, also when the signal itself is forgotten.
  sender_id uuid,
  constraint fk_job_wait_job foreign key (org_id, job_id) references job (org_id, id),
  -- What arrived stays with its job, also when the signal itself is forgotten.
  constraint fk_job_wait_signal foreign key (org_id, signal_id) references signal (org_id, id) on delete set null (signal_id),
  constraint chk_job_wait_arrived check (((arrived_at is null) = (payload is null)) and ((arrived_at is not null) or (signal_id is
    null))),
  constraint chk_job_wait_entry check ((length(entry) >= 1) and (length(entry) <= 1000)),
  constraint chk_job_wait_key check ((length(key) >= 1) and (length(key) <= 255)),
  constraint chk_job_wait_name check ((length(name) >= 1) and (length(name) <= 200))
) with (fillfactor='80');
create index idx_job_wait_open on job_wait (org_id, name, key, job_id) where (arrived_at is null);
create index idx_job_wait_signal on job_wait (org_id, signal_id) where (signal_id is not null);
alter table job_wait add primary key (org_id, job_id, entry);
create policy scheduler on job_wait for select to cortex_scheduler using (true);
create policy scheduler_deletes on job_wait for delete to cortex_scheduler using (true);
grant select, insert, update (signal_id, payload, arrived_at, sender_id) on job_wait to cortex_app;
grant delete, select (org_id, job_id, entry, signal_id, arrived_at) on job_wait to cortex_scheduler;

-- What a steward vouches for about one version of a tool, for one org.
create table tool_confirmation (
  org_id uuid not null,
  id uuid not null,
  app text not null,
  tool_name text not null,
  digest text not null,
  read_only boolean not null,
  idempotent boolean not null,
  risk text,
  note text,
  confirmed_by text not null,
  confirmed_by_id uuid,
  created_at timestamptz not null default plane_now(),
  revoked_at timestamptz,
  revoked_by text,
  constraint tool_confirmation_org_id_fkey foreign key (org_id) references org (id),
  constraint chk_tool_confirmation_digest check (digest ~ '^[a-f0-9]{64}$'),
  constraint chk_tool_confirmation_revoked check ((revoked_at is null) = (revoked_by is null)),
  constraint chk_tool_confirmation_risk check (risk in ('low', 'medium', 'high', 'critical')),
  constraint chk_tool_confirmation_something check (read_only or idempotent or (risk is not null))
);
create index idx_tool_confirmation_list on tool_confirmation (org_id, created_at desc, id desc);
create unique index uq_tool_confirmation_holding on tool_confirmation (org_id, app, tool_name) where (revoked_at is null);
alter table tool_confirmation add primary key (org_id, id);
grant select, insert, update (revoked_at, revoked_by) on tool_confirmation to cortex_app;

-- How each worker's MCP servers are. Workers serve every org, and so do their servers. Rows of workers that were forgotten
-- go with the next one that is written.
create table tool_server (
  app text not null,
  name text not null,
  worker_id uuid not null,
  state text not null,
  since timestamptz not null default plane_now(),
  reason text,
  tools integer not null default 0,
  constraint chk_tool_server_state check (state in ('starting', 'up', 'down'))
);
alter table tool_server add primary key (app, name, worker_id);
grant select, insert, delete, update (state, since, reason, tools) on tool_server to cortex_app;

-- What was declared about a tool that runs elsewhere. Its digest names it, as with the tools of workers; only who gave a schema
-- has a row, and only then can an approver edit its arguments.
create table external_tool (
  org_id uuid not null,
  name text not null,
  digest text not null,
  parameters jsonb not null,
  created_at timestamptz not null default plane_now(),
  constraint fk_external_tool_org foreign key (org_id) references org (id),
  constraint chk_external_tool_digest check (digest ~ '^[a-f0-9]{64}$')
);
alter table external_tool add primary key (org_id, name, digest);
grant select, insert on external_tool to cortex_app;

-- What the ledger does not say of a call that runs elsewhere.
create table external_call (
  org_id uuid not null,
  call_id uuid not null,
  session_id uuid not null,
  job_id uuid not null,
  agent_id uuid not null,
  -- Whose session it is: their account, or the id of the service's key. Keys are theirs alone.
  opener uuid not null,
  key text,
  -- Who asked and who began last: an account or a service's key. Others do not say what became of it.
  asker uuid not null,
  begun_by uuid,
  -- The person who asked, where it was one: they do not approve it where the policy says so.
  caused_by uuid,
  asked_hash bytea not null,
  risk text not null,
  claims_read_only boolean not null,
  timeout_seconds double precision not null,
  policies text not null,
  sender text,
  settle_at timestamptz,
  created_at timestamptz not null default plane_now(),
  callback_id uuid,
  -- One key of one opener is one call of its agent, whichever session asks.
  constraint uq_external_call_key unique (org_id, agent_id, opener, key),
  constraint fk_external_call_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint fk_external_call_call foreign key (org_id, call_id) references tool_call (org_id, id),
  constraint fk_external_call_callback foreign key (org_id, callback_id) references channel_connection (org_id, id),
  constraint fk_external_call_job foreign key (org_id, job_id) references job (org_id, id),
  constraint fk_external_call_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_external_call_hash check (length(asked_hash) = 32),
  constraint chk_external_call_key check ((length(key) >= 1) and (length(key) <= 255))
) with (fillfactor='80');
create index idx_external_call_callback on external_call (org_id, callback_id) where (callback_id is not null);
-- When a scheduler looks at an intent without an outcome.
create index idx_external_call_due on external_call (settle_at) where (settle_at is not null);
create index idx_external_call_job on external_call (org_id, job_id);
create index idx_external_call_list on external_call (org_id, created_at desc, call_id desc);
create index idx_external_call_session on external_call (org_id, session_id, created_at desc, call_id desc);
alter table external_call add primary key (org_id, call_id);
create policy scheduler on external_call for select to cortex_scheduler using (true);
grant select, insert, update (begun_by, policies, sender, settle_at, callback_id) on external_call to cortex_app;
grant select (org_id, call_id, settle_at) on external_call to cortex_scheduler;

-- Immutable: a change is a new version. What is retired binds no new session; those that are bound go on.
create table atlas_version (
  org_id uuid not null,
  atlas_id text not null,
  version text not null,
  number bigint not null,
  digest text not null,
  name text not null,
  description text not null,
  gates integer not null,
  source text not null,
  manifest text not null,
  warnings jsonb not null,
  -- Who may work under it, beside the manifest: a session is bound without reading a file.
  access text not null,
  api_keys text[] not null,
  published_by text not null,
  published_by_id uuid,
  published_at timestamptz not null default plane_now(),
  retired_at timestamptz,
  retired_by text,
  mac bytea,
  constraint atlas_version_org_id_fkey foreign key (org_id) references org (id),
  constraint chk_atlas_version_access check (access in ('public', 'authenticated')),
  constraint chk_atlas_version_atlas_id check (atlas_id ~ '^[a-z0-9]([a-z0-9._-]{0,198}[a-z0-9])?$'),
  constraint chk_atlas_version_digest check (digest ~ '^[a-f0-9]{64}$'),
  constraint chk_atlas_version_number check (number > 0),
  constraint chk_atlas_version_retired check ((retired_at is null) = (retired_by is null)),
  constraint chk_atlas_version_version check (version ~ '^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$'),
  constraint chk_atlas_version_warnings check (jsonb_typeof(warnings) = 'array')
);
create unique index uq_atlas_version_number on atlas_version (org_id, atlas_id, number);
alter table atlas_version add primary key (org_id, atlas_id, version);
grant select, insert, update (retired_at, retired_by, mac) on atlas_version to cortex_app;

-- A session is bound to versions, for as long as it lasts.
create table session_atlas (
  org_id uuid not null,
  session_id uuid not null,
  atlas_id text not null,
  version text not null,
  digest text not null,
  -- Whatever was said up to here, nobody governed: gates hear what comes after it.
  message_seq bigint not null,
  -- Somebody who writes no atlases put it around a session that had none.
  by_caller boolean not null,
  bound_at timestamptz not null default plane_now(),
  constraint fk_session_atlas_session foreign key (org_id, session_id) references session (org_id, id),
  constraint fk_session_atlas_version foreign key (org_id, atlas_id, version) references atlas_version (org_id, atlas_id, version),
  constraint chk_session_atlas_message_seq check (message_seq >= 0)
);
create index idx_session_atlas_version on session_atlas (org_id, atlas_id, version);
alter table session_atlas add primary key (org_id, session_id, atlas_id);
grant select, insert on session_atlas to cortex_app;

-- What the gates of a session remember: one row, written in the commit that goes on from there. Whoever writes names the
-- revision that they read.
create table session_gates (
  org_id uuid not null,
  session_id uuid not null,
  revision bigint not null,
  state jsonb not null,
  updated_at timestamptz not null,
  constraint fk_session_gates_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_session_gates_revision check (revision >= 0)
) with (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', toast.autovacuum_vacuum_scale_factor='0.02');
alter table session_gates add primary key (org_id, session_id);
grant select, insert, update (revision, state, updated_at) on session_gates to cortex_app;

-- How many calls ran under an atlas in a minute, over all sessions: only where its steward limits them.
create table atlas_minute (
  org_id uuid not null,
  atlas_id text not null,
  minute timestamptz not null,
  calls integer not null,
  constraint atlas_minute_org_id_fkey foreign key (org_id) references org (id)
);
-- cortex_scheduler forgets the minutes of any org that are over. It reads no more than when they were.
create index idx_atlas_minute_minute on atlas_minute (minute);
alter table atlas_minute add primary key (org_id, atlas_id, minute);
create policy scheduler on atlas_minute for select to cortex_scheduler using (true);
create policy scheduler_deletes on atlas_minute for delete to cortex_scheduler using (true);
grant select, insert, update (calls) on atlas_minute to cortex_app;
grant delete, select (org_id, atlas_id, minute) on atlas_minute to cortex_scheduler;

-- What is told of atlases is kept by reference: their versions do not change. Of what was asked, the digest of its arguments is
-- kept and not they themselves. Where something was executed under it the row stays, and its bodies go after a while.
create table resolution (
  org_id uuid not null,
  id uuid not null,
  trace_id uuid not null,
  session_id uuid not null,
  asker uuid not null,
  goal_hash bytea,
  request jsonb not null,
  answer jsonb not null,
  atlases jsonb not null,
  expires_at timestamptz not null,
  created_at timestamptz not null default plane_now(),
  executed boolean not null default false,
  emptied_at timestamptz,
  constraint fk_resolution_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_resolution_atlases check (jsonb_typeof(atlases) = 'array'),
  constraint chk_resolution_expiry check (expires_at > created_at),
  constraint chk_resolution_goal_hash check (octet_length(goal_hash) = 32)
);
create index idx_resolution_bodies on resolution (expires_at) where (executed and (emptied_at is null));
-- How many of a session hold.
create index idx_resolution_live on resolution (org_id, session_id, expires_at);
-- Also finds whether a session has heard a goal before.
create index idx_resolution_session on resolution (org_id, session_id, goal_hash);
-- What is left to forget: neither grows with what was executed and emptied long ago.
create index idx_resolution_unused on resolution (expires_at) where (not executed);
alter table resolution add primary key (org_id, id);
create policy scheduler on resolution for select to cortex_scheduler using (true);
create policy scheduler_deletes on resolution for delete to cortex_scheduler using (true);
create policy scheduler_updates on resolution for update to cortex_scheduler using (true) with check (true);
grant select, insert, update (executed) on resolution to cortex_app;
grant delete, select (org_id, id, expires_at, executed, emptied_at), update (request, answer, atlases, emptied_at) on resolution
  to cortex_scheduler;

-- A call is executed under one resolution, or under none.
create table resolution_call (
  org_id uuid not null,
  call_id uuid not null,
  resolution_id uuid not null,
  constraint fk_resolution_call_call foreign key (org_id, call_id) references external_call (org_id, call_id),
  constraint fk_resolution_call_resolution foreign key (org_id, resolution_id) references resolution (org_id, id)
);
create index idx_resolution_call_resolution on resolution_call (org_id, resolution_id);
alter table resolution_call add primary key (org_id, call_id);
grant select, insert on resolution_call to cortex_app;

-- How many requests a key and a person may still make, shared by all processes. They take tokens in batches, so that a request
-- writes nothing. Unlogged: what is lost in a crash is a few seconds of somebody's budget.
create unlogged table request_budget (
  org_id uuid not null,
  -- A key, or a person. Nothing refers to them: a row outlives its key by nothing but its own size.
  subject_id uuid not null,
  tokens double precision not null,
  refilled_at timestamptz not null default plane_now(),
  constraint fk_request_budget_org foreign key (org_id) references org (id),
  constraint chk_request_budget_tokens check (tokens >= (0)::double precision)
);
alter table request_budget add primary key (org_id, subject_id);
create policy scheduler on request_budget for select to cortex_scheduler using (true);
create policy scheduler_deletes on request_budget for delete to cortex_scheduler using (true);
grant select, insert, update on request_budget to cortex_app;
grant delete, select (org_id, subject_id, refilled_at) on request_budget to cortex_scheduler;

create table enrolment_code (
  org_id uuid not null,
  id uuid not null,
  -- Who redeems it.
  user_account_id uuid not null,
  code_hash bytea not null,
  -- Whoever handed it over: an account, or the key of the platform, which has no account in this org.
  issuer_id uuid not null,
  issued_by text not null,
  -- The key that it was made with, and with which it ends. A platform key belongs to another org, so nothing refers to it.
  key_id uuid,
  created_at timestamptz not null default plane_now(),
  expires_at timestamptz not null,
  used_at timestamptz,
  mac bytea,
  constraint uq_enrolment_code unique (code_hash),
  constraint fk_enrolment_code_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_enrolment_code_hash check (length(code_hash) = 32)
);
create index idx_enrolment_code_account on enrolment_code (org_id, user_account_id);
create index idx_enrolment_code_key on enrolment_code (org_id, key_id) where ((key_id is not null) and (used_at is null));
alter table enrolment_code add primary key (org_id, id);
create policy resolver on enrolment_code for select to cortex_resolver using (true);
grant select, insert, delete, update (used_at) on enrolment_code to cortex_app;
grant select (org_id, id, code_hash) on enrolment_code to cortex_resolver;

create table credential_key (
  singleton boolean not null default true,
  sealed bytea not null,
  created_at timestamptz not null default plane_now(),
  -- When rows from before this migration had got their lookup and MAC. Since then a row without a MAC is worth nothing.
  converted_at timestamptz,
  constraint chk_credential_key_singleton check (singleton)
);
alter table credential_key add primary key (singleton);
grant select, insert, update (sealed, converted_at) on credential_key to cortex_app;

-- References to tables that come after their own.
alter table agent add constraint fk_agent_config_version foreign key (org_id, id, config_version) references agent_version
  (org_id, agent_id, version) deferrable initially deferred;
alter table notification add constraint fk_notification_call foreign key (org_id, call_id) references external_call (org_id,
  call_id);

-- Rows that every plane has.
insert into platform_policy ("position", name, action_type, target, effect, condition, required_clearance, template,
  timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds, escalate_to,
  standing) values (1, 'critical-needs-approval', 'tool_call', '*', 'requires_approval', 'risk == "critical"', 0, 'critical_path',
  NULL, NULL, NULL, NULL, NULL, true, NULL, NULL, NULL, NULL, NULL);
insert into platform_policy_version (singleton, version) values (true, 1);

-- Row-level security of every table that belongs to an org.
do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array[
    'org_head', 'team', 'user_account', 'team_member', 'api_key', 'agent', 'agent_version', 'channel_connection',
    'channel_mapping', 'session', 'session_head', 'job', 'job_history', 'message', 'event', 'event_default', 'audit_entry',
    'idempotency', 'step', 'tool_call', 'stored_result', 'policy_version', 'policy', 'approval_request', 'approval_invocation',
    'approval_vote', 'approval_grant', 'approval_event', 'login_link', 'browser_session', 'text_chunk', 'approval_delegation',
    'member_absence', 'notification', 'inbound_event', 'identity_code', 'identity_guess', 'approval_token', 'signing_secret',
    'standing_approval', 'standing_use', 'signing_key', 'approval_receipt', 'audit_root', 'audit_root_head', 'model_call',
    'model_key', 'session_memory', 'journal_entry', 'signal', 'job_wait', 'tool_confirmation', 'external_tool', 'external_call',
    'atlas_version', 'session_atlas', 'session_gates', 'atlas_minute', 'resolution', 'resolution_call', 'request_budget',
    'enrolment_code']
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

grant usage on schema public to cortex_app;
grant usage on schema public to cortex_resolver;
grant usage on schema public to cortex_claimer;
grant usage on schema public to cortex_scheduler;
