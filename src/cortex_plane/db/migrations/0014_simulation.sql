-- A simulation replays the newest calls of an org: without this it would read all that were ever made.
create index idx_tool_call_time on tool_call (org_id, created_at desc, id desc);
