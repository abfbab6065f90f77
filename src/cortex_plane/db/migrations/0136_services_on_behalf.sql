-- What services may be granted again has `session.on_behalf`, which the migration of worker keys left out.
alter table api_key drop constraint chk_api_key_permissions;
alter table api_key add constraint chk_api_key_permissions check (case kind
  when 'service' then permissions <@ array['connection.write', 'policy.write', 'atlas.write', 'tool.confirm', 'agent.write',
    'team.write', 'org.write', 'member.write', 'session.on_behalf']
  when 'worker' then cardinality(permissions) > 0
  else permissions = '{}' end);
