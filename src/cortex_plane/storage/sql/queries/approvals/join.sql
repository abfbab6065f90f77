-- One call more: the card changes, so whoever saw the old one must look again. Whoever shaped either call shaped both.
with joined as (
  update approval_request r set invocations = r.invocations + 1, version = r.version + 1,
    causes = array(select unnest(r.causes) union select unnest($5::uuid[])), caused = merge_caused(r.caused, $6)
  where id = $2 returning org_id, id, version)
, told as (
  insert into approval_event (org_id, approval_id, event_type, payload, created_at)
  select org_id, id, 'joined', jsonb_build_object('call', $3::uuid, 'version', version), plane_now() from joined)
insert into approval_invocation (org_id, approval_id, call_id, job_id) values ($1, $2, $3, $4)
