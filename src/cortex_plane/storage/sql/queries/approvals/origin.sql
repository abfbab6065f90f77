-- Whose session a job belongs to, and who caused it, with those who ask now.
select j.caused_by,
  array(
    select j.caused_by where j.caused_by is not null
    union
    select m.author_id from message m
    where m.org_id = j.org_id and m.session_id = j.session_id and m.role = 'user' and m.author_id is not null
      and j.kind = 'conversation' and m.seq >= coalesce((j.payload ->> 'message_seq')::bigint, 0) and m.seq <= $2
    union
    select unnest($3::uuid[])) as causes,
  s.user_account_id as owner_id
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
where j.id = $1
