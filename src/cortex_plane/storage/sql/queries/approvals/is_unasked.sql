-- Whether people let this call be sent, nobody knows whether it happened, and nobody is asked: its agent was to find out.
select exists (
  select from tool_call c
  where c.job_id = $1 and c.id = $2 and c.status = 'uncertain'
    and (exists (
        select from approval_invocation i join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
        where i.org_id = c.org_id and i.call_id = c.id and r.kind = 'call' and r.status = 'approved')
      or exists (select from standing_use u where u.org_id = c.org_id and u.call_id = c.id))
    and not exists (
      select from approval_invocation i join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
      where i.org_id = c.org_id and i.call_id = c.id and r.kind = 'uncertain_effect' and r.status = 'pending'))
