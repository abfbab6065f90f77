-- What the hot writes cost, less. Figures in docs/why/decisions.md.

-- Only a simulation looks calls up by their time, and names this condition. The planner does not consider a partial index for any other
-- query: in a new plane, without statistics, it took this one to find a call by its id, and read every call of the org.
drop index idx_tool_call_time;
create index idx_tool_call_time on tool_call (org_id, created_at desc, id desc) where created_at > '-infinity';

-- A person refused the call, or let its request expire. As a column, so that the outcome of a call changes nothing that an index is
-- about: such an update stays on its page and writes no index entries.
alter table tool_call add column turned_down boolean not null default false;
grant update (turned_down) on tool_call to cortex_app;
-- The owner is blind where row-level security is forced.
alter table tool_call no force row level security;
update tool_call set turned_down = true where status = 'rejected' and settled_by in ('denied', 'expired');
alter table tool_call force row level security;
drop index idx_tool_call_turned_down;
create index idx_tool_call_turned_down on tool_call (org_id, job_id, tool_name, input_hash) where turned_down;
alter table tool_call set (fillfactor = 55);

-- The memory of a job (summary, facts, the agent's own data) is written when it changes, not with every checkpoint. See
-- `whole_checkpoint`: whoever reads a checkpoint gets it complete.
alter table job add column memory jsonb;
alter table job alter column memory set storage external;
grant update (memory) on job to cortex_app;

-- An entry of the trail is written by functions that compute both hashes, and `cortex audit verify` computes them again.
alter table audit_entry drop constraint chk_audit_entry_format, drop constraint chk_audit_entry_hashes;

drop function if exists record_calls(uuid, uuid, uuid, jsonb, text[], text[], timestamptz, timestamptz);
drop function if exists record_intents(uuid, uuid, uuid, jsonb, timestamptz, timestamptz);
drop function if exists record_outcomes(uuid, jsonb, text[], timestamptz);
drop function if exists record_more(uuid, uuid, uuid, jsonb, timestamptz);
drop function if exists lock_more(uuid, jsonb);
drop function if exists advance_job(
  uuid, uuid, uuid, bigint, bigint, text, bytea, integer, bigint, text, integer, integer, double precision, integer, text, text[],
  text, text[], text, double precision, boolean, uuid[], bytea[], text, text, text, double precision, text, text, text, integer,
  jsonb, text[], jsonb[], text[], bytea[]);

-- A page is pruned when less than its reserve is free: with a reserve larger than a row (a row has 2 KB at most), every step finds
-- room on the page of its job.
alter table job set (fillfactor = 70);
