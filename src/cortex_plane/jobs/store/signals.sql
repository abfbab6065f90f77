-- name: get
select s.id, s.name, s.key, s.payload, s.sent_by, s.created_at from signal s where s.id = $1


-- name: list_page
-- Newest first. Whoever is not staff sees what they sent.
select s.id, s.name, s.key, s.payload, s.sent_by, s.created_at
from signal s
where ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
  and ($4::uuid is null or s.sender_id = $4)
  and ($5::text is null or s.name = $5)
  and ($6::text is null or s.key = $6)
order by s.created_at desc, s.id desc
limit $3


-- name: waits
-- What a job waits for or waited for, oldest first.
select w.entry, w.name, w.key, w.created_at, w.signal_id, w.payload, w.arrived_at
from job_wait w where w.job_id = $1
order by w.created_at, w.entry
