select n.name, k.risk from unnest($2::text[]) n (name) cross join lateral (select known_risk($1, n.name) as risk) k
where k.risk is not null
