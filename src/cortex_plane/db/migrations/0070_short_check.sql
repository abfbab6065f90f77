-- The CHECK of calls takes columns as they are: PostgreSQL parses its text with every statement that writes a call.
create function tool_call_is_sound(
  status text, finished_at timestamptz, input_hash bytea, read_only boolean, verdict text, rule text,
  dispatch_before timestamptz, settle_after timestamptz, on_uncertain text, granted boolean) returns boolean
  language plpgsql immutable parallel safe set search_path = public, pg_temp as $$
declare
  broken text := case
    when status not in ('awaiting', 'allowed', 'approved', 'intended', 'uncertain', 'cleared', 'completed', 'failed', 'rejected',
        'answered')
      then 'chk_tool_call_status'
    when (status in ('completed', 'failed', 'rejected', 'answered')) <> (finished_at is not null) then 'chk_tool_call_end'
    when length(input_hash) <> 32 then 'chk_tool_call_hash'
    when verdict not in ('allow', 'deny', 'requires_approval') then 'chk_tool_call_verdict'
    when on_uncertain not in ('retry_with_key', 'probe', 'ask_human', 'fail') then 'chk_tool_call_on_uncertain'
    when not (read_only or status in ('rejected', 'answered') or (verdict is not null and rule is not null and (
        status in ('awaiting', 'allowed', 'approved')
        or (dispatch_before is not null and settle_after is not null and on_uncertain is not null
          and (status <> 'intended' or verdict = 'allow' or granted)))))
      then 'chk_tool_call_intent' end;
begin
  if broken is not null then
    perform violate('tool_call', broken);
  end if;
  return true;
end
$$;
alter table tool_call drop constraint chk_tool_call, add constraint chk_tool_call check (tool_call_is_sound(
  status, finished_at, input_hash, read_only, verdict, rule, dispatch_before, settle_after, on_uncertain, granted));
drop function tool_call_is_sound(text, boolean, integer, boolean, text, boolean, boolean, text, boolean);
