-- What stewards publish about the actions of agents, which sessions are bound to it, and what became of the gates there.

-- Immutable: a change is a new version. What is retired binds no new session; those that are bound go on.
create table atlas_version (
  org_id           uuid not null references org (id),
  atlas_id         text not null,
  version          text not null,
  number           bigint not null,
  digest           text not null,
  name             text not null,
  description      text not null,
  gates            integer not null,
  source           text not null,
  manifest         text not null,
  warnings         jsonb not null,
  -- Who may work under it, beside the manifest: a session is bound without reading a file.
  access           text not null,
  api_keys         text[] not null,
  published_by     text not null,
  published_by_id  uuid,
  published_at     timestamptz not null default plane_now(),
  retired_at       timestamptz,
  retired_by       text,
  primary key (org_id, atlas_id, version),
  constraint fk_atlas_version_account foreign key (org_id, published_by_id) references user_account (org_id, id),
  constraint chk_atlas_version_atlas_id check (atlas_id ~ '^[a-z0-9]([a-z0-9._-]{0,198}[a-z0-9])?$'),
  constraint chk_atlas_version_version check (version ~ '^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$'),
  constraint chk_atlas_version_digest check (digest ~ '^[a-f0-9]{64}$'),
  constraint chk_atlas_version_warnings check (jsonb_typeof(warnings) = 'array'),
  constraint chk_atlas_version_access check (access in ('public', 'authenticated')),
  constraint chk_atlas_version_number check (number > 0),
  constraint chk_atlas_version_retired check ((retired_at is null) = (retired_by is null))
);
create unique index uq_atlas_version_number on atlas_version (org_id, atlas_id, number);
create index idx_atlas_version_account on atlas_version (org_id, published_by_id);

-- A session is bound to versions, for as long as it lasts.
create table session_atlas (
  org_id      uuid not null,
  session_id  uuid not null,
  atlas_id    text not null,
  version     text not null,
  digest      text not null,
  -- Whatever was said up to here, nobody governed: gates hear what comes after it.
  message_seq bigint not null,
  -- Somebody who writes no atlases put it around a session that had none.
  by_caller   boolean not null,
  bound_at    timestamptz not null default plane_now(),
  primary key (org_id, session_id, atlas_id),
  constraint chk_session_atlas_message_seq check (message_seq >= 0),
  constraint fk_session_atlas_session foreign key (org_id, session_id) references session (org_id, id),
  constraint fk_session_atlas_version foreign key (org_id, atlas_id, version)
    references atlas_version (org_id, atlas_id, version)
);
create index idx_session_atlas_version on session_atlas (org_id, atlas_id, version);

-- What the gates of a session remember: one row, written in the commit that goes on from there. Whoever writes names the
-- revision that they read.
create table session_gates (
  org_id      uuid not null,
  session_id  uuid not null,
  revision    bigint not null,
  state       jsonb not null,
  updated_at  timestamptz not null,
  primary key (org_id, session_id),
  constraint fk_session_gates_session foreign key (org_id, session_id) references session (org_id, id),
  constraint chk_session_gates_revision check (revision >= 0)
  -- One row per governed session, rewritten with every step: cleaned up long before a fifth of the table is dead.
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,
  toast.autovacuum_vacuum_scale_factor = 0.02);

-- How many calls ran under an atlas in a minute, over all sessions: only where its steward limits them.
create table atlas_minute (
  org_id    uuid not null references org (id),
  atlas_id  text not null,
  minute    timestamptz not null,
  calls     integer not null,
  primary key (org_id, atlas_id, minute)
);

-- Row-level security and rights -----------------------------------------------------------------------------

do $$
declare
  one text;
begin
  foreach one in array array['atlas_version', 'session_atlas', 'session_gates', 'atlas_minute'] loop
    execute format('alter table %I enable row level security', one);
    execute format('alter table %I force row level security', one);
    execute format($p$create policy tenant on %I
      using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
      with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid)$p$, one);
  end loop;
end
$$;
grant select, insert, update (retired_at, retired_by) on atlas_version to cortex_app;
grant select, insert on session_atlas to cortex_app;
grant select, insert, update (revision, state, updated_at) on session_gates to cortex_app;
grant select, insert, update (calls) on atlas_minute to cortex_app;

-- cortex_scheduler forgets the minutes of any org that are over. It reads no more than when they were.
create index idx_atlas_minute_minute on atlas_minute (minute);
grant select (org_id, atlas_id, minute), delete on atlas_minute to cortex_scheduler;
create policy scheduler on atlas_minute for select to cortex_scheduler using (true);
create policy scheduler_deletes on atlas_minute for delete to cortex_scheduler using (true);

-- A steward is told over a webhook of the org, and not in person.
alter table notification drop constraint chk_notification_kind;
alter table notification add constraint chk_notification_kind
  check (kind in ('approval', 'invitation', 'callback', 'notice'));
alter table notification drop constraint chk_notification_subject;
alter table notification add constraint chk_notification_subject
  check ((kind in ('approval', 'callback')) = (approval_id is not null));
alter table notification drop constraint chk_notification_callback;
alter table notification add constraint chk_notification_callback check (
  (kind = 'callback') = (call_id is not null) and (kind in ('callback', 'notice')) = (user_account_id is null)
  and (kind not in ('callback', 'notice') or (mapping_id is null and channel_type = 'webhook')));

-- A claim says what its session is bound to.
drop function if exists claim_jobs(uuid, text[], integer, uuid);
