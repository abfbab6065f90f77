-- A person may answer in the place of a call. What they answered stands with the request, and is the result of the call.
alter table approval_request
  add column answer jsonb,
  drop constraint chk_approval_request_status,
  add constraint chk_approval_request_status
    check (status in ('pending', 'approved', 'denied', 'responded', 'expired', 'cancelled')),
  drop constraint chk_approval_request_decider,
  add constraint chk_approval_request_decider check (status not in ('approved', 'denied', 'responded') or resolved_by_name is not null),
  add constraint chk_approval_request_answer
    check (case status when 'responded' then answer is not null when 'expired' then true else answer is null end);
grant update (answer) on approval_request to cortex_app;

alter table approval_vote
  drop constraint chk_approval_vote_decision,
  add constraint chk_approval_vote_decision check (decision in ('approved', 'denied', 'responded'));

alter table approval_event
  drop constraint chk_approval_event_type,
  add constraint chk_approval_event_type check (event_type in ('requested', 'joined', 'dispatched', 'delegated', 'voted', 'edited',
    'approved', 'denied', 'responded', 'expired', 'cancelled', 'reminded', 'escalated', 'answered', 'refused', 'undeliverable',
    'channel_duplicate', 'channel_conflict'));
