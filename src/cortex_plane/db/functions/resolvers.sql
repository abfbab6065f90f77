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

call pg_temp.give_functions('cortex_resolver', 'resolve_api_key(bytea)', 'resolve_org(text)', 'resolve_orgs(timestamptz, uuid, integer)');
