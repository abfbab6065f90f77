-- The orgs of a platform, for platform keys. Each row is read under its own org's policies.
create or replace function list_orgs(p_before timestamptz, p_before_id uuid, p_limit integer)
  returns table (
    id uuid, slug text, name text, settings jsonb, revision integer, created_at timestamptz,
    updated_at timestamptz)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  found uuid;
begin
  for found in select r.org_id from resolve_orgs(p_before, p_before_id, p_limit) r loop
    perform set_config('app.org_id', found::text, true);
    return query
      select o.id, o.slug, o.name, o.settings, o.revision, o.created_at, o.updated_at from org o where o.id = found;
  end loop;
end
$$;
