-- Keys of workers without a database. They have no roles; `permissions` names the apps whose jobs they run: `app:NAME`.
alter table api_key drop constraint chk_api_key_kind;
alter table api_key add constraint chk_api_key_kind check (case kind
  when 'person' then user_account_id is not null and roles = '{}'
  when 'service' then user_account_id is null and cardinality(roles) > 0
  when 'worker' then user_account_id is null and roles = '{}'
  else false end);
alter table api_key drop constraint chk_api_key_permissions;
alter table api_key add constraint chk_api_key_permissions check (case kind
  when 'service' then permissions <@ array['connection.write', 'policy.write', 'atlas.write', 'tool.confirm', 'agent.write',
    'team.write', 'org.write', 'member.write', 'session.on_behalf']
  when 'worker' then cardinality(permissions) > 0
  else permissions = '{}' end);

-- Workers and tools belong to no org, and every org's rows stand beside each other here. These two columns are no references: nothing is
-- found by them but what the plane itself compares, and no tenant reads them.
-- The one org whose jobs a worker claims; null: those of all. Such a worker runs tools elsewhere, over a connection.
alter table worker add column claims_for uuid;
-- The org whose remote worker published a version first; null: a worker beside the database. Nobody else's worker changes the tools of its app.
alter table tool_version add column publisher uuid;
