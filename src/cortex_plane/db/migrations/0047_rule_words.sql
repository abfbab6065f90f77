-- What people are shown of a request: why its policy asks, and what the agent answered to gates.
alter table approval_request add column rule_reason text;
alter table approval_request add column gate_answers jsonb not null default '[]';
