-- A UUIDv7, for rows that a statement makes by itself: of what `gen_random_uuid` made, the first 48 bits become the time in
-- milliseconds, and the version 7.
create or replace function new_id() returns uuid language sql volatile parallel safe set search_path = public, pg_temp as $$
  select encode(set_bit(set_bit(
    overlay(uuid_send(gen_random_uuid())
      placing substring(int8send((extract(epoch from plane_now()) * 1000)::bigint) from 3) from 1 for 6),
    52, 1), 53, 1), 'hex')::uuid
$$;
