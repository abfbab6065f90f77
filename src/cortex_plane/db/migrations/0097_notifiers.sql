-- Processes that send messages: they share the pace of each connection. Whoever has not renewed its row in time is dead.
create table notifier (
  id uuid not null,
  expires_at timestamptz not null
);
alter table notifier add primary key (id);
grant select, insert, delete, update (expires_at) on notifier to cortex_app;
