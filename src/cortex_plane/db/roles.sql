-- Roles belong to the whole server, so other databases may create them at the same moment: whoever is late goes on.
do $$
declare
  wanted text;
begin
  foreach wanted in array array['cortex_app', 'cortex_resolver', 'cortex_claimer', 'cortex_scheduler'] loop
    if not exists (select from pg_roles where rolname = wanted) then
      begin
        execute format('create role %I nologin', wanted);
      exception when duplicate_object or unique_violation then
        null;
      end;
    end if;
  end loop;
  -- Handing a function to its own role must be granted to a migrating login that is not a superuser. Asked for is
  -- usage and not membership: since PostgreSQL 16 whoever created a role is its member, but without the use of it.
  foreach wanted in array array['cortex_resolver', 'cortex_claimer', 'cortex_scheduler'] loop
    if not pg_has_role(current_user, wanted, 'usage') then
      begin
        execute format('grant %I to %I', wanted, current_user);
      exception when unique_violation then
        null;
      end;
    end if;
  end loop;
end
$$;

-- For the files in functions/, which run in the same session: functions that run with the rights of a role, and that the plane may call.
create or replace procedure pg_temp.give_functions(p_role text, variadic p_functions regprocedure[]) language plpgsql as $$
declare
  given regprocedure;
begin
  -- Whoever is not a superuser can only hand a function to a role that may create one there: for this moment it may.
  execute format('grant create on schema public to %I', p_role);
  foreach given in array p_functions loop
    execute format('alter function %s owner to %I', given, p_role);
    execute format('revoke all on function %s from public', given);
    execute format('grant execute on function %s to cortex_app', given);
  end loop;
  execute format('revoke create on schema public from %I', p_role);
end
$$;
