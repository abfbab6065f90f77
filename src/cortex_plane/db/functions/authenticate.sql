-- From the lookup of a key to who is asking, in one round trip, with the columns that its MAC covers. A platform key may name another org to act in.
-- Writes at most once a minute per key, so that a read costs no commit.
create or replace function authenticate(p_secret_hash bytea, p_org_slug text)
  returns table (
    org_id uuid, key_id uuid, kind text, name text, roles text[], user_account_id uuid, clearance integer,
    platform boolean, acts_elsewhere boolean, permissions text[], home_id uuid, holder_id uuid, own_roles text[],
    own_platform boolean, expires_at timestamptz, mac bytea)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  home uuid;
  target uuid;
  found_id uuid;
  found_key api_key%rowtype;
  platform_admin boolean;
  person user_account%rowtype;
begin
  select r.org_id, r.id into home, found_id from resolve_api_key(p_secret_hash) r;
  if home is null then
    return;
  end if;
  perform set_config('app.org_id', home::text, true);
  select * into found_key from api_key k where k.org_id = home and k.id = found_id;
  if found_key.user_account_id is not null then
    select * into person from user_account u where u.org_id = home and u.id = found_key.user_account_id;
    if person.deactivated_at is not null then
      raise exception using errcode = 'CX401', detail = 'member_deactivated',
        message = 'The member whom this key belongs to is deactivated.', hint = 'Ask an admin to reactivate them.';
    end if;
  end if;
  if found_key.revoked_at is not null then
    raise exception using errcode = 'CX401', detail = 'key_revoked', message = 'This key was revoked.',
      hint = 'Use another key of yours, or ask an admin for an enrolment code.';
  end if;
  if found_key.expires_at <= plane_now() then
    raise exception using errcode = 'CX401', detail = 'key_expired', message = 'This key has expired.',
      hint = 'Use another key of yours, or ask an admin for an enrolment code.';
  end if;
  if found_key.last_used_at is null or found_key.last_used_at < plane_now() - interval '1 minute' then
    update api_key k set last_used_at = plane_now()
    where k.org_id = home and k.id = found_id
      and (k.last_used_at is null or k.last_used_at < plane_now() - interval '1 minute');
  end if;
  -- Platform power is an admin's: whoever is no longer admin at home has none elsewhere.
  platform_admin := found_key.platform and 'admin' = any (coalesce(person.roles, found_key.roles));
  target := home;
  if p_org_slug is not null then
    if platform_admin then
      select r.org_id into target from resolve_org(p_org_slug) r;
    else
      select o.id into target from org o where o.id = home and o.slug = p_org_slug;
    end if;
    if target is null then
      raise exception using errcode = 'CX404', detail = 'org_not_found',
        message = 'There is no such org for this key.', hint = 'Leave out the header `Cortex-Org`, or correct it.';
    end if;
  end if;
  return query select target, found_id, found_key.kind, coalesce(person.display_name, found_key.name),
    case when target <> home then array['admin'] when person.id is not null then person.roles
      else found_key.roles end,
    case when target = home then person.id end,
    case when target = home then coalesce(person.clearance, 0) else 0 end,
    platform_admin, target <> home, found_key.permissions, home, found_key.user_account_id, found_key.roles,
    found_key.platform, found_key.expires_at, found_key.mac;
end
$$;
