-- The resolution that a call was executed under; no row where there is none.
select c.resolution_id from resolution_call c where c.call_id = $1
