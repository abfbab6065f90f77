-- Nothing where somebody else made one at the same moment: theirs it is.
insert into signing_key (org_id, id, public_key, sealed) values ($1, $2, $3, $4)
on conflict (org_id) where retired_at is null do nothing
returning id
