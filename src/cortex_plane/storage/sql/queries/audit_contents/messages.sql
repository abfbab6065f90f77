-- Messages of people whose text is not what the trail says was received. Each has one entry, in the same order. `$1`: at most so many.
with said as (
  select session_id, seq, text, row_number() over (partition by session_id order by seq) as number
  from message where role = 'user'),
received as (
  select session_id, seq, body, row_number() over (partition by session_id order by seq) as number
  from audit_entry where action = 'message_received' and session_id is not null),
known as (
  select session_id, s.seq as message, r.seq as entry,
    r.body is null or encode(sha256(convert_to(s.text, 'UTF8')), 'hex') = entry_body(r.body) #>> '{data,text_sha256}' as is_same
  from said s full join received r using (session_id, number))
select 'session ' || session_id || coalesce(', message ' || message, '') as subject,
  case when message is null then 'the message of entry ' || entry || ' is gone'
    when entry is null then 'no entry of the trail received it'
    else 'its text is not what entry ' || entry || ' says was received' end as reason
from known
where message is null or entry is null or is_same is not true
order by session_id, coalesce(message, entry)
limit $1
