-- An agent that runs elsewhere is told of a decision over a webhook of its org. It names the connection, never an address.

alter table external_call add column callback_id uuid;
alter table external_call add constraint fk_external_call_callback
  foreign key (org_id, callback_id) references channel_connection (org_id, id);
create index idx_external_call_callback on external_call (org_id, callback_id) where callback_id is not null;
grant update (callback_id) on external_call to cortex_app;

-- A message to the agent is about a call, and to nobody in person.
alter table notification add column call_id uuid;
alter table notification add constraint fk_notification_call
  foreign key (org_id, call_id) references external_call (org_id, call_id);
-- Once for each request about a call.
create unique index uq_notification_call on notification (org_id, call_id, approval_id) where call_id is not null;
alter table notification alter column user_account_id drop not null;
alter table notification drop constraint chk_notification_kind;
alter table notification add constraint chk_notification_kind check (kind in ('approval', 'invitation', 'callback'));
alter table notification drop constraint chk_notification_subject;
alter table notification add constraint chk_notification_subject check ((kind <> 'invitation') = (approval_id is not null));
alter table notification add constraint chk_notification_callback check (
  (kind = 'callback') = (call_id is not null) and (kind = 'callback') = (user_account_id is null)
  and (kind <> 'callback' or (mapping_id is null and channel_type = 'webhook')));
