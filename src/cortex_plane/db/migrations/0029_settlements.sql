-- Settling an uncertain call needs the same people as approving it did.

-- The request that let the call be sent, on the card that asks whether it happened: its approvers, clearance, quorum and rule about
-- self-approval are this card's. Null where the call needed no approval.
alter table approval_request add column settles uuid;
alter table approval_request add constraint fk_approval_request_settles
  foreign key (org_id, settles) references approval_request (org_id, id);
create index idx_approval_request_settles on approval_request (org_id, settles) where settles is not null;

-- What the vote says about an uncertain call: the verdict, and the digest of its result. Votes count together where they say the same.
alter table approval_vote add column answer text;
grant update (answer) on approval_vote to cortex_app;
