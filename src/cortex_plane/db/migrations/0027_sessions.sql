-- Ending a credential ends what came from it: a login link and a browser session remember the key that they came from, and
-- a person's key the key that it was made with.

alter table api_key
  add column made_with uuid,
  add constraint fk_api_key_made_with foreign key (org_id, made_with) references api_key (org_id, id);
create index idx_api_key_made_with on api_key (org_id, made_with) where made_with is not null;

alter table login_link
  add column key_id uuid,
  add constraint fk_login_link_key foreign key (org_id, key_id) references api_key (org_id, id);
create index idx_login_link_key on login_link (org_id, key_id) where key_id is not null;

alter table browser_session
  add column key_id uuid,
  add constraint fk_browser_session_key foreign key (org_id, key_id) references api_key (org_id, id);
create index idx_browser_session_key on browser_session (org_id, key_id) where key_id is not null;

-- Whoever was deactivated before this has no key any more, also where they are reactivated. Forced row-level security holds
-- for the owner too, who would change no row at all without this.
alter table api_key no force row level security;
alter table user_account no force row level security;
update api_key k set revoked_at = plane_now()
from user_account u
where u.org_id = k.org_id and u.id = k.user_account_id and u.deactivated_at is not null and k.revoked_at is null;
alter table user_account force row level security;
alter table api_key force row level security;
