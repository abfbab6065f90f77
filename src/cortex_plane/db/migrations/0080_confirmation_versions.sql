-- Since which version of its org's confirmations each one holds, and since which it holds no more: requests name the version by which they
-- were made, and times do not tell which of two at once came first. Null where an earlier release wrote it. And whoever took one back is
-- known by more than a name: they shaped what is asked for again because of it.
alter table tool_confirmation
  add column version bigint,
  add column revoked_version bigint,
  add column revoked_by_id uuid;
grant update (revoked_version, revoked_by_id) on tool_confirmation to cortex_app;
