-- A guest turned out to be a member. What the guest caused the member caused, whatever of it waits for a decision: who shaped a call
-- does not approve it. With p_sessions the guest's sessions become the member's own; where the member has a conversation with the same
-- agent open already, the guest's stays beside it, and the member sees it as if they had opened it. Not for mail: anybody can write a
-- sender's address into one, and what they wrote must not go on in the member's name.
create or replace function adopt_guest(p_org uuid, p_guest uuid, p_member uuid, p_sessions boolean) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  member_name text;
begin
  select u.display_name into strict member_name from user_account u where u.org_id = p_org and u.id = p_member;
  update user_account u set became = p_member where u.org_id = p_org and u.id = p_guest;
  update approval_request r
  set causes = r.causes || p_member, caused = merge_caused(r.caused, jsonb_build_array(jsonb_build_object(
    'member_id', p_member, 'name', member_name, 'why', 'wrote to it as a guest, before it was known who they are')))
  where r.org_id = p_org and r.id in (
    select o.id from approval_request o
    where o.org_id = p_org and o.status = 'pending' and p_guest = any (o.causes) and not p_member = any (o.causes)
    order by o.id for no key update);
  if not p_sessions then
    return;
  end if;
  update session s
  set user_account_id = case when t.is_taken then s.user_account_id else p_member end,
    opened_by = case when t.is_taken then p_member else s.opened_by end
  from (
    select g.id, g.kind = 'conversation' and g.status <> 'TERMINATED' and exists (
      select from session m
      where m.org_id = p_org and m.user_account_id = p_member and m.agent_id = g.agent_id and m.kind = 'conversation'
        and m.status <> 'TERMINATED') as is_taken
    from session g where g.org_id = p_org and g.user_account_id = p_guest
    order by g.id for no key update of g) t
  where s.org_id = p_org and s.id = t.id;
end
$$;
