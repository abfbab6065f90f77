-- A connection of a channel on which people act. `agent_id`: whom messages over it reach where nobody chose another. `account` and
-- `external_id`: who it is at its vendor, when it was last asked (`checked_at`). `to_do`: what a person must still do there.
alter table channel_connection add column agent_id uuid;
alter table channel_connection add column account text;
alter table channel_connection add column external_id text;
alter table channel_connection add column to_do text[] not null default '{}';
alter table channel_connection add column checked_at timestamptz;
-- When something last came in over it and went out, at most once a minute.
alter table channel_connection add column last_inbound_at timestamptz;
alter table channel_connection add column last_outbound_at timestamptz;
-- Nothing is sent over it until then: its vendor asked for a pause, or answers nobody. `failures`: tries in a row that failed.
alter table channel_connection add column paused_until timestamptz;
alter table channel_connection add column pause_reason text;
alter table channel_connection add column failures integer not null default 0;
alter table channel_connection add constraint fk_channel_connection_agent foreign key (org_id, agent_id) references agent (org_id, id);
alter table channel_connection add constraint chk_channel_connection_failures check (failures >= 0);
create index idx_channel_connection_paused on channel_connection (paused_until) where (paused_until is not null);
grant select (paused_until) on channel_connection to cortex_scheduler;
grant select (connection_id) on notification to cortex_scheduler;

-- Somebody who had the code of a member typed it there, and the member has not confirmed yet that it was them.
alter table channel_mapping add column asked_at timestamptz;
alter table channel_mapping add column last_used_at timestamptz;
grant update (asked_at, last_used_at, metadata) on channel_mapping to cortex_app;

-- The member whom a guest turned out to be.
alter table user_account add column became uuid;
alter table user_account add constraint fk_user_account_became foreign key (org_id, became) references user_account (org_id, id);
create index idx_user_account_became on user_account (org_id, became) where (became is not null);
