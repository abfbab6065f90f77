-- A deployment that its vendor holds is told the plane's verdict about its call: once, over the connection that asked, and to nobody in
-- person. Without a call nobody could be asked, and the verdict says why.
alter table notification drop constraint chk_notification_kind;
alter table notification add constraint chk_notification_kind
  check (kind in ('approval', 'invitation', 'callback', 'notice', 'alert', 'reply', 'verdict'));
alter table notification drop constraint chk_notification_callback;
alter table notification add constraint chk_notification_callback check (
  ((kind <> 'callback') or (call_id is not null))
  and ((call_id is null) or (kind in ('callback', 'verdict')))
  and ((kind not in ('callback', 'notice', 'verdict')) or ((user_account_id is null) and (mapping_id is null)))
  and ((kind not in ('callback', 'notice')) or (channel_type = 'webhook'))
  and ((kind not in ('invitation', 'alert')) or (user_account_id is not null)));
create unique index uq_notification_verdict on notification (org_id, call_id) where (kind = 'verdict');
