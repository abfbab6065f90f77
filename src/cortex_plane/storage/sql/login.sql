-- Whoever has the rights of cortex_resolver has its policies too, and they show every org.
select current_user::text as name, rolsuper as superuser, rolbypassrls as bypass,
  rolcreaterole as create_role,
  exists (
    select from pg_roles where rolname = 'cortex_resolver' and pg_has_role(current_user, oid, 'usage')) as resolver,
  current_setting('server_version_num')::integer as version
from pg_roles where rolname = current_user
