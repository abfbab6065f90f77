-- What gates did in a job, the newest first. Of a long session only the newest events are looked at.
select e.seq, e.type, e.job_id, e.data, e.created_at
from event e
where e.org_id = $1 and e.session_id = $2 and e.seq > $3 and e.type = any ($5::text[])
  and (e.job_id = $4 or e.job_id is null)
order by e.seq desc
limit $6
