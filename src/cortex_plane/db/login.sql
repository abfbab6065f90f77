-- What the current login could do besides serving. Owners may take row-level security off a table, members of the
-- resolver, the claimer or the scheduler may become it, and whoever creates roles may grant itself more.
select current_user::text as name, rolsuper as superuser, rolbypassrls as bypass, rolcreaterole as create_role,
  exists (select from pg_roles r where r.rolname in ('cortex_resolver', 'cortex_claimer', 'cortex_scheduler') and pg_has_role(current_user, r.oid, 'member'))
    as resolver,
  exists (
    select from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'public' and c.relrowsecurity and pg_has_role(current_user, c.relowner, 'member')) as owner,
  current_setting('server_version_num')::integer as version
from pg_roles where rolname = current_user
