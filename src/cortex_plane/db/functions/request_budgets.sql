-- Takes up to `p_want` requests from the budget of a key and from that of its person: as many as both of them have.
-- `wait_seconds`: where there is none, when there will be one.
create or replace function take_requests(
    p_org uuid, p_subjects uuid[], p_want integer, p_per_second double precision, p_burst double precision)
  returns table (granted integer, wait_seconds double precision)
  language plpgsql set search_path = public, pg_temp as $$
declare
  least_tokens double precision;
begin
  perform set_config('app.org_id', p_org::text, true);
  perform set_config('synchronous_commit', 'off', true);
  -- In the order of their ids, so that two who take at once wait for each other in one direction.
  insert into request_budget as b (org_id, subject_id, tokens)
    select p_org, s, p_burst from unnest(p_subjects) s order by s
  on conflict (org_id, subject_id) do update set
    tokens = least(p_burst, b.tokens
      + greatest(extract(epoch from plane_now() - b.refilled_at), 0)::double precision * p_per_second),
    refilled_at = greatest(plane_now(), b.refilled_at);
  select min(b.tokens) into least_tokens from request_budget b
    where b.org_id = p_org and b.subject_id = any (p_subjects);
  granted := least(p_want, floor(least_tokens))::integer;
  wait_seconds := case when granted > 0 then 0 else (1 - least_tokens) / p_per_second end;
  if granted > 0 then
    update request_budget b set tokens = b.tokens - granted where b.org_id = p_org and b.subject_id = any (p_subjects);
  end if;
  return next;
end
$$;

-- Forgets budgets that nobody took from for longer than p_older, at most p_limit of them; returns how many. A budget without a
-- row is full, and so would these be.
create or replace function forget_request_budgets(p_older interval, p_limit integer) returns integer
  language plpgsql security definer set search_path = public, pg_temp as $$
declare
  forgotten integer;
begin
  delete from request_budget b
  where (b.org_id, b.subject_id) in (
      select o.org_id, o.subject_id from request_budget o
      where o.refilled_at < (select plane_now()) - p_older limit p_limit)
    and b.refilled_at < (select plane_now()) - p_older;
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;

call pg_temp.give_functions('cortex_scheduler', 'forget_request_budgets(interval, integer)');
