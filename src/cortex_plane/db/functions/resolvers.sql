-- What must be found before the org is known. Each runs as cortex_resolver, whose policies let it see only the
-- columns it needs, and returns only (org, id): whoever calls it then sets the org and reads under its policies.

create or replace function resolve_api_key(p_secret_hash bytea) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select k.org_id, k.id from api_key k where k.secret_hash = p_secret_hash
$$;

create or replace function resolve_org(p_slug text) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select o.id, o.id from org o where o.slug = p_slug
$$;

create or replace function resolve_orgs(p_before timestamptz, p_before_id uuid, p_limit integer)
  returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select o.id, o.id from org o
  where p_before is null or (o.created_at, o.id) < (p_before, p_before_id)
  order by o.created_at desc, o.id desc
  limit p_limit
$$;

do $$
declare
  resolver regprocedure;
begin
  -- Whoever is not a superuser can only hand a function to a role that may create one there: for this moment it may.
  grant create on schema public to cortex_resolver;
  foreach resolver in array array[
    'resolve_api_key(bytea)', 'resolve_org(text)', 'resolve_orgs(timestamptz, uuid, integer)']::regprocedure[]
  loop
    execute format('alter function %s owner to cortex_resolver', resolver);
    execute format('revoke all on function %s from public', resolver);
    execute format('grant execute on function %s to cortex_app', resolver);
  end loop;
  revoke create on schema public from cortex_resolver;
end
$$;
