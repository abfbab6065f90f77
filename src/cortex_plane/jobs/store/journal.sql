-- name: list_page
select e.key, e.position, e.kind, e.name, e.input_hash, e.status, e.result, e.result_id, e.error, e.created_at, e.finished_at
from journal_shown e
where e.job_id = $1 and e.position > $2
order by e.position
limit $3
