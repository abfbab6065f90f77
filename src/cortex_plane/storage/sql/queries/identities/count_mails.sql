select count(*) from notification n
where n.org_id = $1 and n.created_at > (select plane_now()) - interval '1 hour' and n.kind = 'invitation' and n.data @> $2
