-- The member with whose key this one was made.
select m.user_account_id from api_key k join api_key m on m.id = k.made_with where k.id = $1
