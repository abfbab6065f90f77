-- Format 2 of an audit entry: its format, its action and its job are hashed too.

-- Entries that are there stay as they are, of format 1. Within a chain the format never goes back.
alter table audit_entry add column format smallint not null default 1;
alter table audit_entry add column job_id uuid;
alter table audit_entry add constraint chk_audit_entry_format check (format in (1, 2));

-- They take more now, and are made anew with the other functions.
drop function if exists chain_hash(bytea, bigint, timestamptz, bytea);
drop function if exists session_append(uuid, uuid, integer, text[], uuid[], jsonb[], text[], bytea[]);
drop function if exists close_approval(
  uuid, uuid, integer, integer, text, text, bytea, uuid, text, text, text, text, text, jsonb, double precision, jsonb, uuid[],
  jsonb, text[], uuid[], jsonb[], text[], bytea[]);
