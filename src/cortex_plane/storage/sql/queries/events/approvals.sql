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
