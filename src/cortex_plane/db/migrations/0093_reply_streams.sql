-- The message that shows what the agent of a session is writing now: a notification, whose last version is the whole answer. Whoever
-- writes the answer finds it in the row that they have locked anyway.
alter table session_head add column stream_id uuid;
alter table session_head add constraint fk_session_head_stream foreign key (org_id, stream_id) references notification (org_id, id);
create index idx_session_head_stream on session_head (org_id, stream_id) where (stream_id is not null);

-- The scheduler's role finds the sessions of any org in which an answer is being written for a chat.
create policy scheduler on session_head for select to cortex_scheduler using (true);
grant select (org_id, session_id, chat_id, stream_id) on session_head to cortex_scheduler;
create policy scheduler on channel_chat for select to cortex_scheduler using (true);
grant select (org_id, id, connection_id, chat_id) on channel_chat to cortex_scheduler;
-- And which of their messages are due.
grant select (status, sent_at, last_error) on notification to cortex_scheduler;
