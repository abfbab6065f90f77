-- The key, and every key of a person that was made with it, however far down. Keys of services stay: they are the org's.
with recursive ended as (
  select id from api_key where id = $1
  union
  select k.id from api_key k join ended e on k.made_with = e.id and k.kind = 'person'
)
update api_key k set revoked_at = plane_now()
from ended e
where k.id = e.id and k.revoked_at is null
returning k.id
