delete from enrolment_code where key_id = any ($1::uuid[]) and used_at is null
returning id
