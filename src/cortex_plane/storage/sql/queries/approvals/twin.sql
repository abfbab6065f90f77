-- Another request that waits for a decision about exactly these arguments, on the same terms.
select r.id from approval_request r join approval_request m on m.id = $1
where r.session_id = m.session_id and r.tool_name = m.tool_name and r.input_hash = $2 and r.terms_hash = m.terms_hash
  and r.status = 'pending' and r.kind = 'call' and r.id <> m.id
