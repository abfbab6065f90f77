-- The same call under the same terms that somebody is being asked about already, unless its time is over.
select id, causes from approval_request
where session_id = $1 and tool_name = $2 and input_hash = $3 and terms_hash = $4 and status = 'pending' and kind = 'call'
  and deadline > plane_now()
for no key update
