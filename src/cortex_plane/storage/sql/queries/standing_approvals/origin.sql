-- Whose session a job belongs to, who shaped what it asks for, with those who ask now, and who could be the same human as those.
select c.causes, array(select sponsors_of(j.org_id, c.causes, 'infinity')) as sponsors, s.user_account_id as owner_id
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
cross join lateral call_causes(j.org_id, j.id, $2, $3::uuid[]) c
where j.id = $1
