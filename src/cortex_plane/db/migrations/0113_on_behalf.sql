-- A service that an admin permits it opens external sessions for a person: the session is that person's (user_account_id), and this is the
-- service.
alter table session add column on_behalf_by uuid;
alter table session add constraint chk_session_on_behalf check (
  (on_behalf_by is null) or ((kind = 'external') and (user_account_id is not null)));

-- One open session for each service, person and outside id.
create unique index uq_session_outside_person on session (org_id, agent_id, outside_by, outside_id, user_account_id) nulls not distinct
  where ((outside_id is not null) and (status <> 'TERMINATED'));
drop index uq_session_outside;

alter table api_key drop constraint chk_api_key_permissions;
alter table api_key add constraint chk_api_key_permissions check (((kind = 'service') or (permissions = '{}')) and (permissions <@
  array['connection.write', 'policy.write', 'atlas.write', 'tool.confirm', 'agent.write', 'team.write', 'org.write', 'member.write',
    'session.on_behalf']));
