-- What other systems send to the plane. Each event is answered once: whoever sends it again gets the same answer.

create table inbound_event (
  org_id         uuid not null,
  connection_id  uuid not null,
  -- The sender's own id for it.
  event_id       text not null,
  -- SHA-256 of the body: an id stands for one body.
  body_hash      bytea not null,
  -- Null until it is known. Until then a second delivery does the work again, which is done once by its key.
  answer         jsonb,
  received_at    timestamptz not null default plane_now(),
  answered_at    timestamptz,
  primary key (org_id, connection_id, event_id),
  constraint fk_inbound_event_connection foreign key (org_id, connection_id) references channel_connection (org_id, id),
  constraint chk_inbound_event_id check (length(event_id) between 1 and 255),
  constraint chk_inbound_event_hash check (length(body_hash) = 32),
  constraint chk_inbound_event_answered check ((answer is null) = (answered_at is null))
);
create index idx_inbound_event_received on inbound_event (received_at);

-- Row-level security and rights -----------------------------------------------------------------------------

alter table inbound_event enable row level security;
alter table inbound_event force row level security;
create policy tenant on inbound_event
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);

grant select, insert, update (answer, answered_at) on inbound_event to cortex_app;

-- A connection is looked up by what a sender puts into the path, before its org is known.
create unique index uq_channel_connection_id on channel_connection (id);
grant select (org_id, id) on channel_connection to cortex_resolver;
create policy resolver on channel_connection for select to cortex_resolver using (true);

-- cortex_scheduler deletes what is too old to come again, of any org. It sees how old an event is, and not what it says.
grant select (org_id, connection_id, event_id, received_at), delete on inbound_event to cortex_scheduler;
create policy scheduler on inbound_event for select to cortex_scheduler using (true);
create policy scheduler_deletes on inbound_event for delete to cortex_scheduler using (true);

-- It also finds what has been failing for too long. It sees since when, and nothing else.
create index idx_channel_connection_failing on channel_connection (failing_since)
  where failing_since is not null and disabled_at is null;
grant select (org_id, id, channel_type, failing_since, disabled_at) on channel_connection to cortex_scheduler;
create policy scheduler on channel_connection for select to cortex_scheduler using (true);
