-- The CHECK of calls takes columns as they are: PostgreSQL parses its text with every statement that writes a call.
-- The body of its function comes with the functions, in the same run.
create function tool_call_is_sound(
  status text, finished_at timestamptz, input_hash bytea, read_only boolean, verdict text, rule text, dispatch_before timestamptz,
  settle_after timestamptz, on_uncertain text, granted boolean) returns boolean
  language plpgsql immutable parallel safe set search_path to 'public', 'pg_temp' as $$ begin return true; end $$;
alter table tool_call drop constraint chk_tool_call, add constraint chk_tool_call check (tool_call_is_sound(
  status, finished_at, input_hash, read_only, verdict, rule, dispatch_before, settle_after, on_uncertain, granted));
drop function tool_call_is_sound(text, boolean, integer, boolean, text, boolean, boolean, text, boolean);
