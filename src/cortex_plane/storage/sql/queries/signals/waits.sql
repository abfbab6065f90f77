-- What a job waits for or waited for, oldest first.
select w.entry, w.name, w.key, w.created_at, w.signal_id, w.payload, w.arrived_at
from job_wait w where w.job_id = $1
order by w.created_at, w.entry
