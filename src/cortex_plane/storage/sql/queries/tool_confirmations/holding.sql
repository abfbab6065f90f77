-- What counts when a call is judged. What was confirmed about an older version is found by its digest, and by no newer one.
select c.app, c.tool_name, c.digest, c.read_only, c.idempotent, c.risk
from tool_confirmation c
where c.revoked_at is null
