-- A decision reads each row once: what was read is passed on. What a receipt says is returned by open_approval, and change_approval
-- writes the receipt.
drop function if exists lock_approvals(uuid, uuid[], uuid);
drop function if exists open_approval(uuid, uuid, jsonb, text);
drop function if exists change_approval(
  uuid, uuid, integer, integer, text, text, bytea, jsonb, text, text, text, jsonb, double precision, jsonb, uuid[], jsonb,
  text[], uuid[], jsonb[], text[], bytea[], uuid[]);
drop function if exists receipt_facts(uuid, uuid, uuid[]);
drop function if exists tied_cause(uuid, uuid, uuid, text);
