-- A link in a mail, found before its org is known, as in resolvers.sql: only (org, id).

create or replace function resolve_identity_code(p_code_hash bytea) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select c.org_id, c.id from identity_code c where c.code_hash = p_code_hash
$$;

do $$
begin
  grant create on schema public to cortex_resolver;
  alter function resolve_identity_code(bytea) owner to cortex_resolver;
  revoke all on function resolve_identity_code(bytea) from public;
  grant execute on function resolve_identity_code(bytea) to cortex_app;
  revoke create on schema public from cortex_resolver;
end
$$;
