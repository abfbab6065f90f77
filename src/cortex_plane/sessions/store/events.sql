-- name: approvals
-- What happened to approvals anywhere in the org within the last seconds, oldest first; of too many the newest.
select session_id, seq, type, job_id, data, created_at
from (
  select e.session_id, e.seq, e.type, e.job_id, e.data, e.created_at
  from event e
  where e.type in (
      'approval_requested', 'approval_joined', 'approval_edited', 'approval_decided', 'approval_expired',
      'approval_cancelled', 'approval_reminded', 'approval_escalated', 'approval_voted', 'approval_delegated',
      'effect_settled')
    and e.created_at > (select plane_now()) - make_interval(secs => $1)
  order by e.created_at desc, e.session_id desc, e.seq desc
  limit $2) lately
order by created_at, session_id, seq


-- name: fresh
-- What is new in any of these sessions, each with its own number to start after.
select w.session_id, e.seq, e.type, e.job_id, e.data, e.created_at
from unnest($1::uuid[], $2::bigint[]) w (session_id, after)
join session_head h on h.session_id = w.session_id and h.event_seq > w.after
cross join lateral events_after(w.session_id, null, w.after, $3) e
order by w.session_id, e.seq


-- name: latest
select event_seq from session_head where session_id = $1


-- name: list_after
select seq, type, job_id, data, created_at from events_after($1, $2, $3, $4)


-- name: of_gates
-- What gates did in a job, the newest first. Of a long session only the newest events are looked at.
select e.seq, e.type, e.job_id, e.data, e.created_at
from event e
where e.org_id = $1 and e.session_id = $2 and e.seq > $3 and e.type = any ($5::text[])
  and (e.job_id = $4 or e.job_id is null)
order by e.seq desc
limit $6
