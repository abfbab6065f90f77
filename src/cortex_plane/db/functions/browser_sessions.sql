-- What a browser carries, found before the org is known, as in resolvers.sql: only (org, id).

create or replace function resolve_login_link(p_secret_hash bytea) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select l.org_id, l.id from login_link l where l.secret_hash = p_secret_hash
$$;

create or replace function resolve_browser_session(p_secret_hash bytea) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select s.org_id, s.id from browser_session s where s.secret_hash = p_secret_hash
$$;

call pg_temp.give_functions('cortex_resolver', 'resolve_login_link(bytea)', 'resolve_browser_session(bytea)');

drop function if exists authenticate_browser(bytea, interval);

-- From the lookup of a cookie to who is asking, in one round trip: roles and clearance as they are now, and what the MAC covers. Nothing where
-- the session is unknown, was idle for too long or is too old, its person is deactivated, or the key that it came from was
-- revoked or has expired. A visit
-- (p_touch) keeps the session alive, written at most once a minute; what a page asks for by itself does not.
create or replace function authenticate_browser(p_secret_hash bytea, p_idle interval, p_touch boolean)
  returns table (
    org_id uuid, id uuid, user_account_id uuid, name text, roles text[], clearance integer, key_id uuid,
    expires_at timestamptz, secret_hash bytea, mac bytea)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  home uuid;
  found_id uuid;
  kept browser_session%rowtype;
  person user_account%rowtype;
begin
  select r.org_id, r.id into home, found_id from resolve_browser_session(p_secret_hash) r;
  if home is null then
    return;
  end if;
  perform set_config('app.org_id', home::text, true);
  select * into kept from browser_session s where s.org_id = home and s.id = found_id;
  if kept.id is null or kept.expires_at <= plane_now() or kept.last_seen_at + p_idle <= plane_now() then
    return;
  end if;
  select * into person from user_account u where u.org_id = home and u.id = kept.user_account_id;
  if person.deactivated_at is not null then
    return;
  end if;
  if kept.key_id is not null and not exists (
      select from api_key k where k.org_id = home and k.id = kept.key_id and k.revoked_at is null
        and (k.expires_at is null or k.expires_at > plane_now())) then
    return;
  end if;
  if p_touch and kept.last_seen_at < plane_now() - interval '1 minute' then
    update browser_session s set last_seen_at = plane_now()
    where s.org_id = home and s.id = found_id and s.last_seen_at < plane_now() - interval '1 minute';
  end if;
  return query select home, found_id, person.id, person.display_name, person.roles, person.clearance, kept.key_id,
    kept.expires_at, kept.secret_hash, kept.mac;
end
$$;
