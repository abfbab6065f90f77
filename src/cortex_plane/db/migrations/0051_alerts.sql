-- What operators are told of at once: a message to one person, as a request for approval is, about no request.
alter table notification drop constraint chk_notification_kind;
alter table notification add constraint chk_notification_kind
  check (kind in ('approval', 'invitation', 'callback', 'notice', 'alert'));
