-- Who may decide an approval. `decider_refusal` is the only place where that is written: inbox, card, mail and decision ask it. The words
-- for its codes are those of approvals/rules/decisions.py. How many humans stand behind votes is counted by policies/model/policies.py
-- too, and a test compares the two.

-- They take a time now.
drop function if exists has_proven_channel(uuid, uuid);
drop function if exists sponsors_of(uuid, uuid[]);
drop function if exists voters_of(uuid, uuid, text);
-- Another name.
drop function if exists hands_behind(channel_connection, channel_mapping, timestamptz);

-- Whether what comes over a channel is signed with a secret of its connection.
create or replace function is_signed_channel(p_channel text) returns boolean
  language sql immutable parallel safe
  return coalesce(p_channel not in ('dashboard', 'api', 'email'), false);

-- The channels on which an admin says who somebody is, as `tenancy/model/identities.py` lists them.
create or replace function vouched_channels() returns text[]
  language sql immutable parallel safe
  return array['webhook', 'github', 'gitlab'];

-- When its member showed that a mapping is theirs. A name for which an admin vouched is that admin's word until they do.
create or replace function proof_time(m channel_mapping) returns timestamptz
  language sql immutable parallel safe
  return case when m.channel_type = any (vouched_channels()) then m.account_proven_at else m.proven_at end;

-- Everybody who could act over a mapping besides its member: they know a secret of its connection, or said whose the mapping is while
-- its member had not proven it. What was done is asked about with the time at which it was done; `infinity` asks about now.
create or replace function possible_senders(c channel_connection, m channel_mapping, p_at timestamptz) returns uuid[]
  language sql immutable parallel safe
  return c.set_up_by || case when (m.removed_at is null or m.removed_at > p_at) and (m.account_proven_at is null or m.account_proven_at > p_at)
    then coalesce(m.vouched_by, '{}') else '{}' end;

-- Whether somebody had shown by then that a channel is theirs, whoever holds its secrets: they opened the link in a mail, typed their code in a chat, or logged in
-- with their account. The first contact of a guest is nobody's proof. Whoever acted in their name before the proof stays who they were.
create or replace function has_proven_channel(p_org uuid, p_member uuid, p_at timestamptz) returns boolean
  language sql stable set search_path = public, pg_temp
  return exists (
    select from channel_mapping m
    where m.org_id = p_org and m.user_account_id = p_member and proof_time(m) <= p_at
      and (m.verified_at is not null or m.removed_at > p_at));

-- The same over a channel of which nobody in the org holds a secret, such as its mail: a proof against everybody.
create or replace function has_neutral_proof(p_org uuid, p_member uuid, p_at timestamptz) returns boolean
  language sql stable set search_path = public, pg_temp
  return exists (
    select from channel_mapping m join channel_connection c on c.org_id = m.org_id and c.id = m.connection_id
    where m.org_id = p_org and m.user_account_id = p_member and proof_time(m) <= p_at
      and (m.verified_at is not null or m.removed_at > p_at) and cardinality(possible_senders(c, m, p_at)) = 0);

-- These members, whoever enrolled or promoted them, and whoever did so for those, up to those who have a neutral proof.
create or replace function with_enrollers(p_org uuid, p_members uuid[], p_at timestamptz) returns uuid[]
  language sql stable set search_path = public, pg_temp as $$
  with recursive enroller (id) as (
    select unnest(p_members)
    union
    select unnest(u.sponsors) from enroller e
    cross join lateral (select u.sponsors from user_account u where u.org_id = p_org and u.id = e.id limit 1) u
    where not has_neutral_proof(p_org, e.id, p_at))
  select coalesce(array_agg(id), '{}') from enroller
$$;

-- Whether a member had shown by then to be somebody else than one sponsor. Whoever could act over a mapping could have made its
-- proof, too, so it counts only where none of them could be that sponsor.
create or replace function is_independent(p_org uuid, p_member uuid, p_sponsor uuid, p_at timestamptz) returns boolean
  language sql stable set search_path = public, pg_temp
  return has_neutral_proof(p_org, p_member, p_at) or exists (
    select from channel_mapping m join channel_connection c on c.org_id = m.org_id and c.id = m.connection_id
    where m.org_id = p_org and m.user_account_id = p_member and proof_time(m) <= p_at
      and (m.verified_at is not null or m.removed_at > p_at)
      and not with_enrollers(p_org, possible_senders(c, m, p_at), p_at) && with_enrollers(p_org, array[p_sponsor], p_at));

-- Who could be the same human as one of these members: whoever enrolled or promoted them and to whom they are not independent, and
-- whoever did so for those.
create or replace function sponsors_of(p_org uuid, p_members uuid[], p_at timestamptz) returns setof uuid
  language sql stable set search_path = public, pg_temp rows 3 as $$
  with recursive sponsor (id) as (
    select s.id from user_account u cross join unnest(u.sponsors) s (id)
    where u.org_id = p_org and u.id = any (p_members) and not is_independent(p_org, u.id, s.id, p_at)
    union
    select s.id from sponsor t
    cross join lateral (select u.sponsors from user_account u where u.org_id = p_org and u.id = t.id limit 1) u
    cross join unnest(u.sponsors) s (id)
    where not is_independent(p_org, t.id, s.id, p_at))
  select id from sponsor
$$;

-- Everybody who could be the human behind a vote, the member first: also whoever set up the connection through which it came (they
-- know its secret, and could sign as anybody), now or before the name there was given up, whoever vouched for that name, and whoever
-- could be the same human as those. The mail of an org has no secret of its own.
create or replace function voters_of(p_org uuid, p_member uuid, p_channel text, p_at timestamptz) returns uuid[]
  language sql stable set search_path = public, pg_temp as $$
  select p_member || coalesce(array_agg(distinct o.id) filter (where o.id <> p_member), '{}') from (
    select s.id from sponsors_of(p_org, array[p_member], p_at) s (id)
    union all
    select a.id
    from channel_mapping m
    join channel_connection c on c.org_id = m.org_id and c.id = m.connection_id and c.channel_type = p_channel
    cross join lateral (select possible_senders(c, m, p_at) as ids) h
    cross join lateral (select unnest(h.ids) union all select sponsors_of(p_org, h.ids, p_at)) a (id)
    where is_signed_channel(p_channel) and m.org_id = p_org and m.user_account_id = p_member) o
$$;

-- The name of a cause of the call that could be the same human as whoever decides (p_behind: voters_of them), where a cause must not
-- approve it.
create or replace function tied_cause(r approval_request, p_member uuid, p_behind uuid[]) returns text
  language sql stable set search_path = public, pg_temp as $$
  select u.display_name
  from unnest(r.causes) c (id) join user_account u on u.org_id = r.org_id and u.id = c.id
  where not r.self_approval and p_member is not null and c.id <> p_member
    and c.id || array(select sponsors_of(r.org_id, array[c.id], r.requested_at)) && p_behind
  limit 1
$$;

-- Why a person may not approve a request, as a code; null where they may. `self_approval` and `one_human` do not bar a no.
-- p_settles: for a question about a call that needed no approval, whether the person settles jobs; null: its approvers decide.
-- p_shapers, p_behind: everybody who could be the human who shaped the call, and who decides now; null: not looked at.
-- p_named: as if the request named the person. Without `set`, so that the planner expands it.
create or replace function decider_refusal(
  r approval_request, p_member uuid, p_roles text[], p_clearance integer, p_settles boolean, p_shapers uuid[], p_behind uuid[],
  p_named boolean default false) returns text
  language sql immutable parallel safe
  return case
    when p_settles is not null and r.kind = 'uncertain_effect' and r.settles is null then
      case when not p_settles then 'not_a_settler' end
    when p_member is null then 'not_a_person'
    when p_roles <@ array['guest'] then 'guest_cannot_decide'
    when p_member = any (r.delegated) then 'delegated_away'
    when not p_named and (r.approvers -> 'roles' ?| p_roles or r.approvers -> 'members' ? p_member::text
      or r.approvers @> '{"owner": true}' and coalesce(r.owner_id = p_member, p_roles && array['admin', 'approver'])) is not true
      then 'not_an_approver'
    when p_clearance < r.required_clearance then 'clearance_too_low'
    when not r.self_approval and p_member = any (r.causes) then 'self_approval'
    when not r.self_approval and p_shapers && p_behind then 'one_human'
  end;

-- Everybody who could be one of the humans who shaped a call, where they must not approve it.
create or replace function shapers_of(r approval_request) returns uuid[]
  language sql stable set search_path = public, pg_temp as $$
  select case when r.self_approval then '{}' else r.causes || array(select sponsors_of(r.org_id, r.causes, r.requested_at)) end
$$;

-- voters_of somebody whose row the caller has read. Without `set`, so that the planner expands it.
create or replace function humans_behind(u user_account, p_channel text, p_at timestamptz) returns uuid[]
  language sql stable
  return case when cardinality(u.sponsors) = 0 and not is_signed_channel(p_channel) then array[u.id]
    else voters_of(u.org_id, u.id, p_channel, p_at) end;

-- Whether somebody may decide a request now. p_shapers: shapers_of it. Without `set`, so that the planner expands it and finds in it
-- the condition on roles of the index that leaves guests out.
create or replace function may_decide(r approval_request, u user_account, p_shapers uuid[]) returns boolean
  language sql stable
  return u.deactivated_at is null and u.roles <> '{guest}' and decider_refusal(r, u.id, u.roles, u.clearance, null, p_shapers,
    case when cardinality(p_shapers) > 0 then humans_behind(u, null, 'infinity') end) is null;

-- Who may decide a request now.
create or replace function approval_deciders(p_org uuid, p_approval uuid)
  returns table (id uuid, display_name text, clearance integer, roles text[])
  language sql stable set search_path = public, pg_temp as $$
  with request as materialized (
    select r, shapers_of(r) as shapers from approval_request r where r.org_id = p_org and r.id = p_approval)
  select u.id, u.display_name, u.clearance, u.roles
  from request q join user_account u on u.org_id = p_org
  where may_decide(q.r, u, q.shapers)
$$;

-- Why somebody may not take a part of a request over.
create or replace function taker_refusal(r approval_request, u user_account) returns text
  language sql stable set search_path = public, pg_temp as $$
  select decider_refusal(r, u.id, u.roles, u.clearance, null, shapers_of(r), voters_of(r.org_id, u.id, null, 'infinity'), true)
$$;

-- The same for a request and whoever looks at it, with the name of a cause that could be the same human. p_person has `id`, `roles`,
-- `clearance`, `settles` and `channel`; p_behind: voters_of them.
create or replace function refusal_of(r approval_request, p_person jsonb, p_shapers uuid[], p_behind uuid[])
  returns table (refusal text, shaped_by text)
  language plpgsql stable set search_path = public, pg_temp as $$
declare
  person uuid := p_person ->> 'id';
begin
  refusal := decider_refusal(r, person, array(select jsonb_array_elements_text(p_person -> 'roles')),
    (p_person ->> 'clearance')::integer, (p_person ->> 'settles')::boolean, p_shapers, p_behind);
  shaped_by := case when refusal = 'one_human' then tied_cause(r, person, p_behind) end;
  return next;
end
$$;

-- The same for a request that the caller has not read.
create or replace function approval_refusal(p_org uuid, p_approval uuid, p_person jsonb)
  returns table (refusal text, shaped_by text)
  language plpgsql stable set search_path = public, pg_temp as $$
declare
  request approval_request;
  person uuid := p_person ->> 'id';
begin
  select * into request from approval_request r where r.org_id = p_org and r.id = p_approval;
  if found then
    select d.* into refusal, shaped_by
    from refusal_of(request, p_person, shapers_of(request),
      case when not request.self_approval and person is not null then voters_of(p_org, person, p_person ->> 'channel', 'infinity') end) d;
  end if;
  return next;
end
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
