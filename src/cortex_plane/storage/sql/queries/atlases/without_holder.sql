-- Which of these atlases have no version that holds, by their places.
select w.place from unnest($1::text[]) with ordinality w (id, place)
where not exists (select from atlas_version a where a.atlas_id = w.id and a.retired_at is null)
order by w.place
