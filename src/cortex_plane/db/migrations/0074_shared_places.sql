-- A policy may name shared places, such as a channel of a team or an issue: their message is about a request, and to nobody in person.
alter table notification drop constraint chk_notification_mapping;
alter table notification add constraint chk_notification_mapping
  check ((kind <> 'approval') or ((mapping_id is null) = (user_account_id is null)));
alter table notification drop constraint chk_notification_callback;
alter table notification add constraint chk_notification_callback check (
  ((kind = 'callback') = (call_id is not null))
  and ((kind not in ('callback', 'notice')) or ((user_account_id is null) and (mapping_id is null) and (channel_type = 'webhook')))
  and ((kind not in ('invitation', 'alert')) or (user_account_id is not null)));
-- One message for each request and place.
create unique index uq_notification_place on notification (org_id, approval_id, connection_id, address)
  where ((kind = 'approval') and (mapping_id is null));
-- Which request does a command mean that somebody typed there?
create index idx_notification_place on notification (org_id, connection_id, lower(address), created_at desc, id desc)
  where ((kind = 'approval') and (mapping_id is null));
