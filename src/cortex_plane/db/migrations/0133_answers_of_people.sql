-- The plane itself gave up on a call of which nobody knows whether it happened, because nobody is asked about it. The names of people stand
-- in settled_by, too, so this is a fact of its own.
alter table external_call add column given_up boolean not null default false;
-- The try that got what people answered about a call first: where it is repeated, it gets the same answer.
alter table external_call add column answer_sender text;
grant update (given_up, answer_sender) on external_call to cortex_app;

-- Row-level security holds for the login that migrates, too.
alter table external_call no force row level security;
alter table tool_call no force row level security;
update external_call x set given_up = true
from tool_call c
where c.org_id = x.org_id and c.id = x.call_id and x.unsettled and c.status = 'failed' and c.settled_by = 'fail'
  and c.error like 'Nobody knows whether it happened, and nobody is asked:%';
alter table external_call force row level security;
alter table tool_call force row level security;
