-- Rows from before credentials had MACs get theirs once. Whoever could take the mark back could have their own rows converted.
create or replace function keep_credentials_converted() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  if old.converted_at is not null and new.converted_at is distinct from old.converted_at then
    raise exception using errcode = 'CX409', detail = 'credentials_converted',
      message = 'Credentials were converted already.', hint = 'A row without a MAC is worth nothing; make a new credential.';
  end if;
  return new;
end
$$;

create or replace trigger keep_credentials_converted before update on credential_key
  for each row execute function keep_credentials_converted();

-- Gives rows of an org their lookup and their MAC, and how many. The app itself may change neither; it runs as the owner of the tables.
create or replace function convert_credentials(
  p_org uuid, p_table text, p_ids uuid[], p_lookups bytea[], p_macs bytea[]) returns integer
  language plpgsql security definer set search_path = public, pg_temp as $$
declare
  lookup text := case
    when p_table in ('api_key', 'browser_session', 'login_link') then 'secret_hash'
    when p_table in ('enrolment_code', 'identity_code') then 'code_hash'
    when p_table = 'approval_token' then 'token_hash' end;
  converted integer;
begin
  if lookup is null or not exists (select from credential_key k where k.converted_at is null) then
    raise exception using errcode = 'CX409', detail = 'credentials_converted',
      message = 'Credentials were converted already.', hint = 'A row without a MAC is worth nothing; make a new credential.';
  end if;
  perform set_config('app.org_id', p_org::text, true);
  execute format(
    'update %I t set %I = g.lookup, mac = g.mac from unnest($2, $3, $4) as g (id, lookup, mac)'
    ' where t.org_id = $1 and t.id = g.id and t.mac is null', p_table, lookup)
  using p_org, p_ids, p_lookups, p_macs;
  get diagnostics converted = row_count;
  return converted;
end
$$;
revoke all on function convert_credentials(uuid, text, uuid[], bytea[], bytea[]) from public;
grant execute on function convert_credentials(uuid, text, uuid[], bytea[], bytea[]) to cortex_app;
