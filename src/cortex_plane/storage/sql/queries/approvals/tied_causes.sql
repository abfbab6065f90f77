-- Which of these requests a member cannot approve because a cause could be the same human, and who that is.
select t.id, t.name
from (select a.id, tied_cause($1, a.id, $3, null) as name from unnest($2::uuid[]) a (id)) t
where t.name is not null
