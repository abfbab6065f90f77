-- Replies of agents that are not among the messages as the trail says. Entries of earlier releases hold no digest. `$1`: at most so many.
select 'session ' || e.session_id || ', job ' || e.job_id as subject,
  'the reply of entry ' || e.seq || ' is not among its messages' as reason
from audit_entry e cross join lateral entry_body(e.body) b
where e.action in ('step_completed', 'job_completed') and b #>> '{data,reply_sha256}' is not null and not exists (
  select from message m
  where m.org_id = e.org_id and m.session_id = e.session_id and m.role = 'assistant' and m.job_id = e.job_id
    and encode(sha256(convert_to(m.text, 'UTF8')), 'hex') = b #>> '{data,reply_sha256}')
order by e.chain_id, e.seq
limit $1
