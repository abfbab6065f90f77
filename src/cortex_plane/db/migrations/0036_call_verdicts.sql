-- The verdict about a call, and the rule that gave it, are columns of the call: a step writes one row less. Earlier
-- verdicts about the same call are on the audit trail.
alter table tool_call add column verdict text, add column rule text, add column granted boolean not null default false;
alter table tool_call no force row level security;
alter table call_authorization no force row level security;
alter table approval_grant no force row level security;
update tool_call c set verdict = z.verdict, rule = z.rule
from call_authorization z where z.org_id = c.org_id and z.id = c.authorization_id;
update tool_call c set granted = true
where c.status not in ('awaiting', 'allowed', 'approved') and exists (
  select from approval_grant g where g.org_id = c.org_id and g.call_id = c.id and g.consumed_at is not null);
alter table tool_call force row level security;
alter table approval_grant force row level security;

alter table tool_call drop constraint chk_tool_call_intent, drop constraint fk_tool_call_authorization;
drop view if exists external_call_shown cascade;
alter table tool_call drop column authorization_id;
drop table call_authorization;
alter table tool_call
  add constraint chk_tool_call_verdict check (verdict in ('allow', 'deny', 'requires_approval')),
  -- A dispatch that nobody authorised, or that has no end, cannot be written.
  add constraint chk_tool_call_intent check (
    read_only or status = 'rejected' or (verdict is not null and rule is not null and (
      status in ('awaiting', 'allowed', 'approved')
      or (dispatch_before is not null and settle_after is not null and on_uncertain is not null
          and (status <> 'intended' or verdict = 'allow' or granted)))));
grant update (verdict, rule, granted) on tool_call to cortex_app;

-- Their verdict has no id any more.
drop function if exists authorize_call(
  uuid, uuid, uuid, text, bytea, text, text, text, text, text, bytea, boolean, text, text, double precision, uuid, text, text,
  text, text, text, double precision, uuid, integer, text, uuid, uuid, uuid, text[], jsonb[], text[], bytea[], jsonb);
drop function if exists intend_call(
  uuid, uuid, text, integer, text, text, double precision, uuid, text, text, boolean, uuid, integer, uuid, text[], jsonb[],
  text[], bytea[], jsonb);
