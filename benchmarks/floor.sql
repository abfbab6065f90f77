-- Twins of the tables that taking in a message writes: the same columns and primary keys, and nothing else.
-- No row-level security, no foreign keys, no triggers, no CHECKs, no secondary indexes.
create schema floor;
create table floor.user_account (like public.user_account including defaults, primary key (org_id, id));
create table floor.channel_mapping (like public.channel_mapping including defaults, primary key (org_id, id));
create table floor.session (like public.session including defaults, primary key (org_id, id));
create table floor.session_head (
  like public.session_head including defaults, primary key (org_id, session_id)) with (fillfactor = 50);
create table floor.message (like public.message including defaults, primary key (org_id, session_id, seq));
create table floor.job (like public.job including defaults, primary key (org_id, id));
create table floor.job_history (like public.job_history including identity, primary key (org_id, job_id, id));
create table floor.event (like public.event including defaults, primary key (org_id, session_id, seq));
create table floor.audit_entry (like public.audit_entry, primary key (org_id, session_id, seq));
alter table floor.audit_entry alter column chain_id drop not null;
