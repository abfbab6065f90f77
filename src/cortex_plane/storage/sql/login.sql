select current_user::text as name, rolsuper as superuser, rolbypassrls as bypass,
  rolcreaterole as create_role,
  current_setting('server_version_num')::integer as version
from pg_roles where rolname = current_user
