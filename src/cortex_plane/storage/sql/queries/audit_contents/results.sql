-- The results of calls whose digest the trail holds, as they are kept now. A call that ended does not change any more.
select e.chain_id, e.seq, said.call, said.digest, c.result::text as result
from audit_entry e
cross join lateral entry_body(e.body) b
cross join lateral (
  select b #>> '{data,call}' as call, b #>> '{data,result_hash}' as digest
  where e.action in ('call_settled', 'effect_settled')
  union all
  select x ->> 'id', x ->> 'result_hash'
  from jsonb_array_elements(case jsonb_typeof(b #> '{data,calls}') when 'array' then b #> '{data,calls}' else '[]' end) x
  where e.action = 'step_completed') said
left join tool_call c on c.org_id = e.org_id and c.id = id_in(said.call)
where e.action in ('call_settled', 'effect_settled', 'step_completed') and said.digest is not null
