-- When this member was deactivated last. A signed link has no row that could end with the access of its person, so those for
-- requests from before it do not work.
alter table user_account add column access_ended_at timestamptz;
alter table user_account no force row level security;
update user_account set access_ended_at = deactivated_at where deactivated_at is not null;
alter table user_account force row level security;
