-- What is new in any of these sessions, each with its own number to start after.
select w.session_id, e.seq, e.type, e.job_id, e.data, e.created_at
from unnest($1::uuid[], $2::bigint[]) w (session_id, after)
join session_head h on h.session_id = w.session_id and h.event_seq > w.after
cross join lateral events_after(w.session_id, null, w.after, $3) e
order by w.session_id, e.seq
