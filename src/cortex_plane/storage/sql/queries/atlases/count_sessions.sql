-- Open ones, up to a number: who asks wants to know whether there are any.
select count(*) from (
  select from session_atlas b join session s on s.org_id = b.org_id and s.id = b.session_id
  where b.atlas_id = $1 and b.version = $2 and s.status <> 'TERMINATED' limit $3) bound
