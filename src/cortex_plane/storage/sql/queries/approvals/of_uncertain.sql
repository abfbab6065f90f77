-- The open card of an uncertain call.
select r.id from approval_request r
where r.job_id = $1 and r.kind = 'uncertain_effect' and r.status = 'pending'
  and exists (select from approval_invocation i where i.org_id = r.org_id and i.approval_id = r.id and i.call_id = $2)
for no key update of r
