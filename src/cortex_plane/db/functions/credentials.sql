-- Tokens and signed links: found before the org is known, as in resolvers.sql, and consumed by whatever decides.

create or replace function resolve_approval_token(p_token_hash bytea) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select t.org_id, t.id from approval_token t where t.token_hash = p_token_hash
$$;

create or replace function resolve_approval(p_approval uuid) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select r.org_id, r.id from approval_request r where r.id = p_approval
$$;

call pg_temp.give_functions('cortex_resolver', 'resolve_approval_token(bytea)', 'resolve_approval(uuid)');

-- A vote uses up every token that its person has for that request, through whatever door it came.
create or replace function consume_approval_tokens() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  update approval_token t set used_at = new.created_at
  where t.org_id = new.org_id and t.approval_id = new.approval_id and t.user_account_id = new.user_account_id
    and t.used_at is null;
  return null;
end
$$;

create or replace trigger consume_approval_tokens after insert or update on approval_vote
  for each row execute function consume_approval_tokens();

-- What is due for the keeper, across orgs: orgs whose current secret is too old, or whose retired one is over, and orgs
-- with tokens that nobody will ask about any more.
create or replace function find_old_credentials(p_rotate_after interval, p_keep_tokens interval, p_limit integer)
  returns table (org_id uuid)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select found.org_id from (
    (select s.org_id from signing_secret s
     where s.retire_at is null and s.created_at <= (select plane_now()) - p_rotate_after limit p_limit)
    union
    (select s.org_id from signing_secret s where s.retire_at <= (select plane_now()) limit p_limit)
    union
    (select t.org_id from approval_token t
     where t.expires_at <= (select plane_now()) - p_keep_tokens order by t.expires_at limit p_limit)) found
$$;

call pg_temp.give_functions('cortex_scheduler', 'find_old_credentials(interval, interval, integer)');

-- From the lookup of a token to what it decides and who decides with it, in one round trip: roles and clearance as they
-- are now. `vote` is how its person voted on the version that it was made for. `unused_channel` is the channel over which it was
-- sent, if the org no longer uses it for approvals.
drop function if exists open_approval_token(bytea);
create or replace function open_approval_token(p_token_hash bytea)
  returns table (
    org_id uuid, id uuid, approval_id uuid, version integer, input_hash text, template text, expires_at timestamptz,
    used_at timestamptz, vote text, unused_channel text, now timestamptz, member_id uuid, name text, roles text[],
    clearance integer, active boolean, mac bytea)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  home uuid;
  found_id uuid;
begin
  select r.org_id, r.id into home, found_id from resolve_approval_token(p_token_hash) r;
  if home is null then
    return;
  end if;
  perform set_config('app.org_id', home::text, true);
  return query
    select t.org_id, t.id, t.approval_id, t.version, encode(t.input_hash, 'hex'), r.template, t.expires_at, t.used_at,
      v.decision, case when not uses_channel(home, n.channel_type) then n.channel_type end, plane_now(), u.id, u.display_name,
      u.roles, u.clearance, u.deactivated_at is null, t.mac
    from approval_token t
    join approval_request r on r.org_id = t.org_id and r.id = t.approval_id
    join user_account u on u.org_id = t.org_id and u.id = t.user_account_id
    left join approval_vote v on v.org_id = t.org_id and v.approval_id = t.approval_id and v.version = t.version
      and v.user_account_id = t.user_account_id
    left join notification n on n.org_id = t.org_id and n.id = t.notification_id
    where t.org_id = home and t.id = found_id;
end
$$;

-- The same for a link: what its request is, whom it names, and the secrets that may have signed it, the current one first.
-- Nothing is said about whether it was signed: whoever calls this compares. A link ends with the access of its person, and stays so
-- where they are reactivated: `active` is false for requests from before.
create or replace function open_approval_link(p_approval uuid, p_operator uuid, p_purpose text)
  returns table (
    org_id uuid, deadline timestamptz, template text, now timestamptz, secret_ids uuid[], sealed bytea[],
    member_id uuid, name text, roles text[], clearance integer, active boolean)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  home uuid;
begin
  select r.org_id into home from resolve_approval(p_approval) r;
  if home is null then
    return;
  end if;
  perform set_config('app.org_id', home::text, true);
  return query
    select r.org_id, r.deadline, r.template, plane_now(), s.ids, s.sealed, u.id, u.display_name, u.roles, u.clearance,
      u.deactivated_at is null and r.requested_at > coalesce(u.access_ended_at, '-infinity')
    from approval_request r
    cross join lateral (
      select coalesce(array_agg(k.id order by k.retire_at desc nulls first, k.id), '{}') as ids,
        coalesce(array_agg(k.sealed order by k.retire_at desc nulls first, k.id), '{}') as sealed
      from signing_secret k
      where k.org_id = r.org_id and k.purpose = p_purpose
        and (k.retire_at is null or k.retire_at > (select plane_now()))) s
    left join user_account u on u.org_id = r.org_id and u.id = p_operator
    where r.org_id = home and r.id = p_approval;
end
$$;
