-- A mail is on its way to this address of this member, or has just arrived.
select exists (
  select from notification n
  where n.org_id = $1 and n.mapping_id = $2 and n.kind = 'invitation'
    and (n.status = 'pending' or n.sent_at > (select plane_now()) - $3::interval))
