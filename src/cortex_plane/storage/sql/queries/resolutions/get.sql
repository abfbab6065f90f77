-- For whoever asked; with null for anybody who sees the whole org.
select r.id, r.trace_id, r.session_id, r.request, case when r.emptied_at is null then r.answer end as answer, r.atlases,
  r.expires_at, r.expires_at <= plane_now() as expired
from resolution r where r.id = $1 and ($2::uuid is null or r.asker = $2)
