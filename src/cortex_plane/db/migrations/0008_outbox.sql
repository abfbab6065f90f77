-- The outbox: what channels carry to people.
--
-- One row for a request, a person and a way to reach them. It wants to show `desired_version` and shows `rendered_version`;
-- whoever delivers brings it to the newest. Lock order: approval → notification → session_head → org_head. Whoever delivers
-- holds no lock while it sends: it has the row until `taken_until`, and `taken_by` fences what it writes afterwards.

alter table channel_connection
  add column config jsonb not null default '{}',
  -- Its secrets, sealed with the master key.
  add column sealed bytea,
  -- Since when nothing has got through.
  add column failing_since timestamptz,
  add column disabled_reason text;
alter table channel_mapping
  add column suppressed_at timestamptz,
  add column suppressed_reason text,
  add constraint chk_channel_mapping_suppressed check ((suppressed_at is null) = (suppressed_reason is null));

create table notification (
  org_id            uuid not null,
  id                uuid not null,
  seq               bigint generated always as identity,
  kind              text not null,
  approval_id       uuid,
  connection_id     uuid not null,
  channel_type      text not null,
  mapping_id        uuid,
  user_account_id   uuid not null,
  address           text not null,
  -- What one person is told on one connection is told in order, by one notifier at a time.
  lane              bigint not null generated always as (hashtextextended(connection_id::text || ' ' || address, 2)) stored,
  -- What its message needs besides; no secrets: those are made when it is rendered.
  data              jsonb not null default '{}',
  desired_version   integer not null default 1,
  rendered_version  integer not null default 0,
  status            text not null default 'pending',
  attempts          integer not null default 0,
  -- When somebody must send it; null where nothing is to be sent.
  next_attempt_at   timestamptz,
  taken_until       timestamptz,
  taken_by          uuid,
  last_error        text,
  message_ref       text,
  -- What the channel remembered of its last message, and what the plane did: of which state of the request it spoke.
  shown             jsonb not null default '{}',
  said              jsonb not null default '{}',
  -- When a send was begun for the first time. What became of it may be unknown.
  tried_at          timestamptz,
  sent_at           timestamptz,
  created_at        timestamptz not null,
  primary key (org_id, id),
  constraint fk_notification_approval foreign key (org_id, approval_id) references approval_request (org_id, id),
  constraint fk_notification_connection
    foreign key (org_id, connection_id, channel_type) references channel_connection (org_id, id, channel_type),
  constraint fk_notification_mapping foreign key (org_id, mapping_id) references channel_mapping (org_id, id),
  constraint fk_notification_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_notification_kind check (kind in ('approval', 'invitation')),
  constraint chk_notification_subject check ((kind = 'approval') = (approval_id is not null)),
  constraint chk_notification_mapping check (kind <> 'approval' or mapping_id is not null),
  constraint chk_notification_status check (status in ('pending', 'delivered', 'dead')),
  constraint chk_notification_address check (length(trim(address)) > 0),
  constraint chk_notification_versions check (0 <= rendered_version and rendered_version <= desired_version),
  -- What is pending has a time, and nothing else costs a notifier anything.
  constraint chk_notification_work check ((status = 'pending') = (next_attempt_at is not null)),
  constraint chk_notification_delivered check (status <> 'delivered' or rendered_version = desired_version),
  constraint chk_notification_dead check (status <> 'dead' or last_error is not null),
  constraint chk_notification_taken check ((taken_until is null) = (taken_by is null)),
  constraint chk_notification_sent check (sent_at is null or tried_at is not null),
  constraint chk_notification_attempts check (attempts >= 0)
) with (fillfactor = 85);
-- Nobody is told twice of one request on one address.
create unique index uq_notification_recipient on notification (org_id, approval_id, mapping_id)
  where approval_id is not null;
-- Is anything due at all? Which org is next? Which lane, and what in it?
create index idx_notification_due on notification (next_attempt_at) where next_attempt_at is not null;
create index idx_notification_org on notification (org_id, next_attempt_at) where next_attempt_at is not null;
create index idx_notification_lane on notification (org_id, lane, next_attempt_at, seq) where next_attempt_at is not null;
create index idx_notification_taken on notification (org_id, lane) where taken_until is not null;
create index idx_notification_list on notification (org_id, created_at desc, id desc);
create index idx_notification_status on notification (org_id, status, created_at desc, id desc)
  where status <> 'delivered';
create index idx_notification_connection on notification (org_id, connection_id);
create index idx_notification_mapping on notification (org_id, mapping_id) where mapping_id is not null;
create index idx_notification_account on notification (org_id, user_account_id);

-- Row-level security and rights -----------------------------------------------------------------------------

alter table notification enable row level security;
alter table notification force row level security;
create policy tenant on notification
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);

grant select, insert, update (
  desired_version, rendered_version, status, attempts, next_attempt_at, taken_until, taken_by, last_error, message_ref,
  shown, said, tried_at, sent_at
) on notification to cortex_app;
grant update (suppressed_at, suppressed_reason) on channel_mapping to cortex_app;

-- cortex_scheduler finds what is due across orgs, and takes it for a notifier. It sees when, and not what.
grant select (org_id, id, seq, lane, channel_type, next_attempt_at, taken_until) on notification to cortex_scheduler;
grant update (taken_until, taken_by) on notification to cortex_scheduler;
create policy scheduler on notification for select to cortex_scheduler using (true);
create policy scheduler_takes on notification for update to cortex_scheduler using (true) with check (true);
