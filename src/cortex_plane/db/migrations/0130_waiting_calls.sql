-- Calls that wait for a person, or may begin since one answered, are found without reading the others of their session. True where nobody
-- knows: rows of before are looked at.
alter table external_call add column may_wait boolean not null default true;
grant update (may_wait) on external_call to cortex_app;
create index idx_external_call_waiting on external_call (org_id, job_id) where may_wait;

-- A call in doubt is found by the arguments that an approver made of it, too. Few calls are edited.
create index idx_tool_call_edited on tool_call (org_id, input_hash) where edited;
