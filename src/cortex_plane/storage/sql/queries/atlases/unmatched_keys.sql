-- Which of these globs no key fits that works today, by their places.
select g.place from unnest($1::text[]) with ordinality g (glob, place)
where not exists (
  select from api_key k
  where k.revoked_at is null and (k.expires_at is null or k.expires_at > (select plane_now())) and glob_matches(g.glob, k.name))
order by g.place
