-- How many humans stand behind the votes of an approval. The rule is that of policies/model/policies.py, and a test compares the two.

-- They take a time now.
drop function if exists has_proven_channel(uuid, uuid);
drop function if exists sponsors_of(uuid, uuid[]);
drop function if exists voters_of(uuid, uuid, text);

-- Whether somebody had shown by then that a channel is theirs: they opened the link in a mail, or typed their code in a chat. A name
-- behind a webhook is an admin's word, and the first contact of a guest is nobody's. Whoever acted in their name before the proof
-- stays who they were, so what was done is asked about with the time at which it was done; `infinity` asks about now.
create or replace function has_proven_channel(p_org uuid, p_member uuid, p_at timestamptz) returns boolean
  language sql stable set search_path = public, pg_temp
  return exists (
    select from channel_mapping m
    where m.org_id = p_org and m.user_account_id = p_member and m.channel_type <> 'webhook' and m.proven_at <= p_at
      and (m.verified_at is not null or m.removed_at > p_at));

-- Who could be the same human as one of these members: whoever enrolled or promoted them while they have proven no channel of
-- their own, and whoever did so for those.
create or replace function sponsors_of(p_org uuid, p_members uuid[], p_at timestamptz) returns setof uuid
  language sql stable set search_path = public, pg_temp rows 3 as $$
  with recursive sponsor (id) as (
    select s.id from user_account u cross join unnest(u.sponsors) s (id)
    where u.org_id = p_org and u.id = any (p_members) and not has_proven_channel(p_org, u.id, p_at)
    union
    select s.id from sponsor t join user_account u on u.org_id = p_org and u.id = t.id cross join unnest(u.sponsors) s (id)
    where not has_proven_channel(p_org, u.id, p_at))
  select id from sponsor
$$;

-- Everybody who could be the human behind a vote, the member first: also whoever set up the webhook through which it came, now or
-- before the name there was given up, and whoever could be the same human as those.
create or replace function voters_of(p_org uuid, p_member uuid, p_channel text, p_at timestamptz) returns uuid[]
  language sql stable set search_path = public, pg_temp as $$
  select p_member || coalesce(array_agg(distinct o.id) filter (where o.id <> p_member), '{}') from (
    select s.id from sponsors_of(p_org, array[p_member], p_at) s (id)
    union all
    select a.id
    from channel_mapping m
    join channel_connection c on c.org_id = m.org_id and c.id = m.connection_id and c.channel_type = 'webhook'
    cross join lateral (select unnest(c.set_up_by) union all select sponsors_of(p_org, c.set_up_by, p_at)) a (id)
    where p_channel = 'webhook' and m.org_id = p_org and m.user_account_id = p_member) o
$$;

-- The name of a cause of the call that could be the same human as whoever decides, where a cause must not approve it.
create or replace function tied_cause(p_org uuid, p_approval uuid, p_member uuid, p_channel text) returns text
  language sql stable set search_path = public, pg_temp as $$
  select u.display_name
  from approval_request r cross join unnest(r.causes) c (id) join user_account u on u.org_id = p_org and u.id = c.id
  where r.org_id = p_org and r.id = p_approval and not r.self_approval and p_member is not null and c.id <> p_member
    and c.id || array(select sponsors_of(p_org, array[c.id], r.requested_at)) && voters_of(p_org, p_member, p_channel, 'infinity')
  limit 1
$$;

-- Those whose yes to the version that is there counts: of votes that could come from one human, one does. Whoever can only be
-- themselves comes first, then the order in which they voted.
create or replace function counted_voters(p_org uuid, p_approval uuid) returns setof uuid
  language plpgsql stable set search_path = public, pg_temp as $$
declare
  vote record;
  seen uuid[] := '{}';
begin
  for vote in
    select b.behind
    from approval_request r
    join approval_vote v on v.org_id = r.org_id and v.approval_id = r.id and v.version = r.version and v.decision = 'approved'
    join approval_deciders(p_org, p_approval) d on d.id = v.user_account_id
    cross join lateral (select voters_of(p_org, v.user_account_id, v.channel, v.created_at) as behind) b
    where r.org_id = p_org and r.id = p_approval
    order by cardinality(b.behind) > 1, v.created_at, v.user_account_id
  loop
    if not vote.behind && seen then
      seen := seen || vote.behind;
      return next vote.behind[1];
    end if;
  end loop;
end
$$;
