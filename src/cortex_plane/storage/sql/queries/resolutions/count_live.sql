-- How many resolutions of a session hold, counted up to $2.
select count(*) from (
  select from resolution r where r.session_id = $1 and r.expires_at > (select plane_now()) limit $2) live
