-- What people do on channels. An event of a vendor is stored before the vendor is answered, and handled afterwards: a process that dies
-- in between loses nothing. What stays of a handled event is its id, which makes the same event again change nothing.
create table channel_event (
  org_id uuid not null,
  connection_id uuid not null,
  -- The vendor's own id for it.
  event_id text not null,
  seq bigint generated always as identity,
  -- Of its connection and chat. What happens in one chat is handled in the order in which it came.
  lane bigint not null,
  -- Null once it is handled.
  payload jsonb,
  status text not null default 'pending',
  attempts integer not null default 0,
  received_at timestamptz not null default plane_now(),
  -- When somebody must handle it: the end of the lease while somebody does. Null where nothing is to be done.
  next_attempt_at timestamptz default plane_now(),
  taken_by uuid,
  last_error text,
  settled_at timestamptz,
  constraint fk_channel_event_connection foreign key (org_id, connection_id) references channel_connection (org_id, id),
  constraint chk_channel_event_id check (length(event_id) between 1 and 200),
  constraint chk_channel_event_status check (status in ('pending', 'done', 'failed')),
  constraint chk_channel_event_work check ((status = 'pending') = (next_attempt_at is not null)),
  constraint chk_channel_event_settled check ((status = 'pending') = (settled_at is null)),
  constraint chk_channel_event_payload check ((status = 'pending') <= (payload is not null)),
  constraint chk_channel_event_failed check (status <> 'failed' or last_error is not null)
);
alter table channel_event add primary key (org_id, connection_id, event_id);
-- Which chat is next, and what in it?
create index idx_channel_event_lane on channel_event (org_id, lane, seq) where (status = 'pending');
create index idx_channel_event_seq on channel_event (org_id, seq) where (status = 'pending');
create index idx_channel_event_due on channel_event (next_attempt_at) where (next_attempt_at is not null);
create index idx_channel_event_received on channel_event (received_at);
create index idx_channel_event_last on channel_event (org_id, connection_id, received_at desc);
create policy scheduler on channel_event for select to cortex_scheduler using (true);
create policy scheduler_takes on channel_event for update to cortex_scheduler using (true) with check (true);
create policy scheduler_deletes on channel_event for delete to cortex_scheduler using (true);
grant select, insert, update (payload, status, attempts, next_attempt_at, taken_by, last_error, settled_at) on channel_event to cortex_app;
grant select (org_id, connection_id, event_id, seq, lane, status, received_at, next_attempt_at), update (next_attempt_at, taken_by), delete
  on channel_event to cortex_scheduler;

-- A person in a chat of a connection: where answers to them go, and which agent they chose there.
create table channel_chat (
  org_id uuid not null,
  id uuid not null,
  connection_id uuid not null,
  chat_id text not null,
  sender_id text not null,
  thread text,
  agent_id uuid,
  updated_at timestamptz not null default plane_now(),
  constraint fk_channel_chat_connection foreign key (org_id, connection_id) references channel_connection (org_id, id),
  constraint fk_channel_chat_agent foreign key (org_id, agent_id) references agent (org_id, id),
  constraint uq_channel_chat_person unique (org_id, connection_id, chat_id, sender_id),
  constraint chk_channel_chat_id check (length(chat_id) between 1 and 500),
  constraint chk_channel_chat_sender check (length(sender_id) between 1 and 500)
);
alter table channel_chat add primary key (org_id, id);
create index idx_channel_chat_agent on channel_chat (org_id, agent_id) where (agent_id is not null);
grant select, insert, update (thread, agent_id, updated_at) on channel_chat to cortex_app;

-- A message that asked a person for words: their reply to it decides.
create table channel_prompt (
  org_id uuid not null,
  connection_id uuid not null,
  chat_id text not null,
  message_ref text not null,
  sender_id text not null,
  -- Of the button that they pressed.
  data text not null,
  created_at timestamptz not null default plane_now(),
  constraint fk_channel_prompt_connection foreign key (org_id, connection_id) references channel_connection (org_id, id)
);
alter table channel_prompt add primary key (org_id, connection_id, chat_id, message_ref);
create index idx_channel_prompt_created on channel_prompt (created_at);
create policy scheduler on channel_prompt for select to cortex_scheduler using (true);
create policy scheduler_deletes on channel_prompt for delete to cortex_scheduler using (true);
grant select, insert, delete, update (sender_id, data, created_at) on channel_prompt to cortex_app;
grant select (org_id, connection_id, chat_id, message_ref, created_at), delete on channel_prompt to cortex_scheduler;

-- Who fetches what people send over a connection, by polls or a socket: one process at a time. Whoever takes it over counts the epoch up,
-- and nothing is taken from whoever has an older one.
create table channel_listener (
  org_id uuid not null,
  connection_id uuid not null,
  owner_id uuid,
  epoch bigint not null default 0,
  leased_until timestamptz not null,
  -- How far it has read, as the channel has it.
  cursor text,
  last_error text,
  updated_at timestamptz not null default plane_now(),
  constraint fk_channel_listener_connection foreign key (org_id, connection_id) references channel_connection (org_id, id)
);
alter table channel_listener add primary key (org_id, connection_id);
create index idx_channel_connection_listens on channel_connection (org_id, id)
  where ((config ->> 'mode') in ('polling', 'socket') and disabled_at is null);
create policy scheduler on channel_listener for select to cortex_scheduler using (true);
create policy scheduler_inserts on channel_listener for insert to cortex_scheduler with check (true);
create policy scheduler_takes on channel_listener for update to cortex_scheduler using (true) with check (true);
grant select, insert, update on channel_listener to cortex_app;
grant select (org_id, connection_id, owner_id, epoch, leased_until, cursor), insert (org_id, connection_id, owner_id, epoch, leased_until),
  update (owner_id, epoch, leased_until) on channel_listener to cortex_scheduler;
grant select (config, revision) on channel_connection to cortex_scheduler;

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['channel_event', 'channel_chat', 'channel_prompt', 'channel_listener'] loop
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

-- Where the person of a session wrote last, if that was on a channel: there goes what their agent says. It stands in the row that
-- whoever answers has locked anyway.
alter table session_head add column chat_id uuid;
alter table session_head add constraint fk_session_head_chat foreign key (org_id, chat_id) references channel_chat (org_id, id);

alter table notification drop constraint chk_notification_kind;
alter table notification add constraint chk_notification_kind
  check (kind in ('approval', 'invitation', 'callback', 'notice', 'alert', 'reply'));
-- A card that must be shown again says so here.
grant update (data) on notification to cortex_app;
