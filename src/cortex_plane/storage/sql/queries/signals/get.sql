select s.id, s.name, s.key, s.payload, s.sent_by, s.created_at from signal s where s.id = $1
