-- An enrolment code, found before its org is known, as in resolvers.sql: only (org, id).

create or replace function resolve_enrolment_code(p_code_hash bytea) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select c.org_id, c.id from enrolment_code c where c.code_hash = p_code_hash
$$;

call pg_temp.give_functions('cortex_resolver', 'resolve_enrolment_code(bytea)');
