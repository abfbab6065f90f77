-- Nobody acts in another's name: people redeem a code of their own instead of getting a key from somebody else, programs have
-- the permissions that they were granted by name, and until somebody has proven a channel of their own they count as one human
-- with whoever enrolled or promoted them. Of a code only its SHA-256 is kept.

create table enrolment_code (
  org_id           uuid not null,
  id               uuid not null,
  -- Who redeems it.
  user_account_id  uuid not null,
  code_hash        bytea not null,
  -- Whoever handed it over: an account, or the key of the platform, which has no account in this org.
  issuer_id        uuid not null,
  issued_by        text not null,
  -- The key that it was made with, and with which it ends. A platform key belongs to another org, so nothing refers to it.
  key_id           uuid,
  created_at       timestamptz not null default plane_now(),
  expires_at       timestamptz not null,
  used_at          timestamptz,
  primary key (org_id, id),
  constraint uq_enrolment_code unique (code_hash),
  constraint fk_enrolment_code_account foreign key (org_id, user_account_id) references user_account (org_id, id),
  constraint chk_enrolment_code_hash check (length(code_hash) = 32)
);
create index idx_enrolment_code_account on enrolment_code (org_id, user_account_id);
create index idx_enrolment_code_key on enrolment_code (org_id, key_id) where key_id is not null and used_at is null;

alter table enrolment_code enable row level security;
alter table enrolment_code force row level security;
create policy tenant on enrolment_code
  using (org_id = nullif(current_setting('app.org_id', true), '')::uuid)
  with check (org_id = nullif(current_setting('app.org_id', true), '')::uuid);
grant select, insert, update (used_at), delete on enrolment_code to cortex_app;

-- A code is looked up before its org is known.
grant select (org_id, id, code_hash) on enrolment_code to cortex_resolver;
create policy resolver on enrolment_code for select to cortex_resolver using (true);

-- Whoever added, enrolled or promoted this person: accounts, and keys of programs and of the platform. Rows from before this have
-- none, and count on their own.
alter table user_account add column sponsors uuid[] not null default '{}';

-- When a member showed that this address or sender is theirs; `verified_at` alone may be an admin's word or a first contact. What
-- members have is theirs: only people who were guests did not prove it. Forced row-level security holds for the owner too, who
-- would change no row at all without this.
alter table channel_mapping add column proven_at timestamptz;
grant update (proven_at) on channel_mapping to cortex_app;
alter table channel_mapping no force row level security;
alter table user_account no force row level security;
update channel_mapping m set proven_at = m.verified_at
from user_account u
where u.org_id = m.org_id and u.id = m.user_account_id and u.roles <> '{guest}' and m.verified_at is not null
  and m.channel_type <> 'webhook' and m.metadata ->> 'purpose' in ('invitation', 'address', 'sender');
alter table user_account force row level security;
alter table channel_mapping force row level security;

-- Whoever set the secret of this connection, or said whose a name behind it is: they could have made what comes through it.
alter table channel_connection add column set_up_by uuid[] not null default '{}';

-- What an admin granted a service by name. Its roles do not give it any of this.
alter table api_key
  add column permissions text[] not null default '{}',
  add constraint chk_api_key_permissions check (
    (kind = 'service' or permissions = '{}') and permissions <@ array[
      'connection.write', 'policy.write', 'atlas.write', 'tool.confirm', 'agent.write', 'team.write', 'org.write',
      'member.write']);

-- They say, and take, more now.
drop function if exists authenticate(bytea, text);
drop function if exists open_approval(uuid, uuid);
