-- Discord's Gateway is listened to as well. Slack posts events over HTTP and repeats them for some minutes only: after a longer outage its
-- history is read. The index of a wider condition serves the previous release, too.
create index idx_channel_connection_listeners on channel_connection (org_id, id)
  where ((config ->> 'mode') in ('polling', 'socket', 'gateway', 'http') and disabled_at is null);
drop index idx_channel_connection_listens;
