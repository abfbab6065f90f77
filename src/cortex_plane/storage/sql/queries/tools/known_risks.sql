select n.name, known_risk($1, n.name) as risk from unnest($2::text[]) n (name)
