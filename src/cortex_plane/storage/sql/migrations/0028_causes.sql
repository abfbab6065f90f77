-- Who shaped a call, and what is known of a tool that somebody else declares.

-- The versions of a tool by its name, whatever app publishes it.
create index idx_tool_version_name on tool_version (name, app, published_at desc);

drop function if exists call_context(uuid, uuid, uuid, text, text, bytea, boolean, uuid, uuid);
