-- First in the lock order: a termination and a new job cannot overlook each other.
select status, kind, agent_id, revision from session
where id = $1 and ($2::uuid is null or $2 in (user_account_id, opened_by))
for no key update
