-- Who may work under an atlas: what its steward wrote, asked wherever a session is opened, given work, spoken to or acts.

-- `*` stands for anything, also for nothing; every other character for itself. As domain/globs has it.
create or replace function glob_matches(p_glob text, p_text text) returns boolean
  language sql immutable parallel safe
  return p_text like replace(replace(replace(replace(p_glob, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%');

-- p_key: the key with which somebody asks; null, or no key of this org, where they came without one: in a browser, or over a
-- channel whose program spoke for them. p_person: who they are; null for a program.
create or replace function require_atlas_access(p_org uuid, p_session uuid, p_key uuid, p_person uuid) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  bound record;
  its_name text;
  its_roles text[];
  guest boolean;
begin
  for bound in
    select a.atlas_id, a.access, a.api_keys
    from session_atlas b
    join atlas_version a on a.org_id = b.org_id and a.atlas_id = b.atlas_id and a.version = b.version
    where b.org_id = p_org and b.session_id = p_session and (a.access <> 'public' or a.api_keys <> '{}')
    order by b.atlas_id
  loop
    if guest is null then
      select k.name, k.roles into its_name, its_roles from api_key k where k.org_id = p_org and k.id = p_key;
      select u.roles = '{guest}' into guest from user_account u where u.org_id = p_org and u.id = p_person;
      guest := coalesce(guest, its_roles = '{guest}', false);
    end if;
    if bound.access = 'authenticated' and guest then
      raise exception using errcode = 'CX403', detail = 'atlas_access_refused',
        message = format('The atlas %s lets no guests work under it.', bound.atlas_id),
        hint = 'Ask an admin to make you a member of the org.';
    end if;
    if bound.api_keys <> '{}' and its_name is null then
      raise exception using errcode = 'CX403', detail = 'atlas_access_refused',
        message = format('The atlas %s is for certain keys of the org alone, and this came without one.', bound.atlas_id),
        hint = 'Use the API with a key that its steward names; from a browser or a channel nobody works under it.';
    end if;
    if bound.api_keys <> '{}' and not exists (select from unnest(bound.api_keys) g where glob_matches(g, its_name)) then
      raise exception using errcode = 'CX403', detail = 'atlas_access_refused',
        message = format('The atlas %s is for certain keys of the org alone, and the key "%s" is none of them.',
          bound.atlas_id, its_name),
        hint = 'Use a key whose name its steward lists in `api_keys`, or ask the steward to list this one.';
    end if;
  end loop;
end
$$;
