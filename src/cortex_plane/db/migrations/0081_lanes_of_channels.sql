-- A notifier looks for the next lane of one channel at a time: what waits for the others is not walked through.
create index idx_notification_channel on notification (org_id, channel_type, lane, next_attempt_at) where (next_attempt_at is not null);
