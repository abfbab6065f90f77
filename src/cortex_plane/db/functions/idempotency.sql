-- Claims an idempotency key for the running transaction. Null: it is new, go on. Otherwise the earlier result.
-- A concurrent request with the same key waits here until the first one has committed or rolled back.
create or replace function claim_once(
  p_org uuid, p_caller uuid, p_verb text, p_key text, p_fingerprint bytea) returns jsonb
  language plpgsql set search_path = public, pg_temp as $$
declare
  earlier idempotency%rowtype;
begin
  if p_key is null then
    return null;
  end if;
  insert into idempotency (org_id, caller_id, verb, key, fingerprint)
  values (p_org, p_caller, p_verb, p_key, p_fingerprint)
  on conflict do nothing;
  if found then
    return null;
  end if;
  select * into strict earlier from idempotency
  where org_id = p_org and caller_id = p_caller and verb = p_verb and key = p_key;
  if earlier.fingerprint <> p_fingerprint then
    raise exception using errcode = 'CX409', detail = 'idempotency_key_reused',
      message = 'This Idempotency-Key was used for a different request.',
      hint = 'Send a new key with a new request; repeat a key only with the same request.';
  end if;
  return earlier.result;
end
$$;

-- Keeps the result beside the key, in the same transaction.
create or replace function settle_once(p_org uuid, p_caller uuid, p_verb text, p_key text, p_result jsonb)
  returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  if p_key is not null then
    update idempotency set result = p_result
    where org_id = p_org and caller_id = p_caller and verb = p_verb and key = p_key;
  end if;
end
$$;
