-- Who shaped a call, and what is known of a tool that somebody else declares.

-- The versions of a tool by its name, whatever app publishes it.
create index idx_tool_version_name on tool_version (name, app, published_at desc);

drop function if exists call_context(uuid, uuid, uuid, text, text, bytea, boolean, uuid, uuid);

-- Causes: who shaped a call. Where self-approval is off, none of them approves it. An identity is the id of a person's account or of
-- the key of a program; `person_behind` says whom it stands for. Rows that were written before this migration have none: they
-- exclude nobody, and the card says so.

-- Whoever made a key answers for the program that uses it.
alter table api_key add column owner_id uuid;
alter table api_key add constraint fk_api_key_owner foreign key (org_id, owner_id) references user_account (org_id, id);
create index idx_api_key_owner on api_key (org_id, owner_id) where owner_id is not null;

alter table agent_version add column created_by_id uuid;
-- Who submitted a job, or submitted it again.
alter table job add column submitted_by uuid;
-- The key with which a message was brought, beside its author.
alter table message add column key_id uuid;
-- Everybody who wrote what stands in the context.
alter table session add column context_by uuid[] not null default '{}';
grant update (context_by) on session to cortex_app;
-- Whose signal came. What arrived stays with its job, also when the signal itself is forgotten.
alter table job_wait add column sender_id uuid;
grant update (sender_id) on job_wait to cortex_app;
-- Forced row-level security holds for the owner too, who would change no row at all without this.
alter table job_wait no force row level security;
alter table signal no force row level security;
update job_wait w set sender_id = s.sender_id from signal s where s.org_id = w.org_id and s.id = w.signal_id;
alter table signal force row level security;
alter table job_wait force row level security;

-- As the card shows them: member, name and why. `causes` are the members among them.
alter table approval_request add column caused jsonb not null default '[]';
grant update (causes, caused) on approval_request to cortex_app;

drop function if exists vote_approval(
  uuid, uuid, integer, integer, text, bytea, uuid, text, text, text, text, jsonb, text[], uuid[], jsonb[], text[], bytea[]);
drop function if exists deliver_message(uuid, session, text, uuid, uuid, uuid, text[], bytea[], bytea, bytea);
