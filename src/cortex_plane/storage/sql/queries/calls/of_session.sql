-- The one job of an external session.
select id, status, holds from job where session_id = $1 and kind = 'external'
