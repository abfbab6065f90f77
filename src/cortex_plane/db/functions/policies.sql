-- Which rows hold for an org now: the version of its own and that of the platform's, with a dot between; and, where a
-- steward has confirmed anything about tools, the version of that. Null where the org cannot be seen.
create or replace function policies_version(p_org uuid) returns text
  language plpgsql stable set search_path = public, pg_temp as $$
begin
  return (
    select o.policy_version::text || '.' || p.version::text
      || case when o.confirmation_version > 0 then '.' || o.confirmation_version::text else '' end
    from org o, platform_policy_version p where o.id = p_org);
end
$$;

-- The platform's rows have no versions of their own; whoever changes one gives the whole a new number.
create or replace function platform_policy_changed() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  update platform_policy_version set version = version + 1;
  return null;
end
$$;

create or replace trigger platform_policy_changed after insert or update or delete or truncate on platform_policy
  for each statement execute function platform_policy_changed();
