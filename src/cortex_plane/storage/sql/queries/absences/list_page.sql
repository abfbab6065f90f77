select a.id, a.user_account_id as member_id, u.display_name as member, a.delegate_id, d.display_name as delegate,
  a.starts_at, a.ends_at, a.reason, a.cancelled_at, a.created_by, a.created_at,
  case
    when a.cancelled_at is not null then 'cancelled'
    when a.ends_at <= (select plane_now()) then 'over'
    when a.starts_at <= (select plane_now()) then 'current'
    else 'planned'
  end as status
from member_absence a
join user_account u on u.org_id = a.org_id and u.id = a.user_account_id
join user_account d on d.org_id = a.org_id and d.id = a.delegate_id
where ($1::timestamptz is null or (a.created_at, a.id) < ($1, $2::uuid))
  and ($4::uuid is null or a.user_account_id = $4)
  and (not $5::boolean or a.cancelled_at is null and a.ends_at > (select plane_now()))
order by a.created_at desc, a.id desc
limit $3
