-- The member who made this key, with a key of theirs or in a browser.
select coalesce(k.owner_id, m.user_account_id) from api_key k left join api_key m on m.id = k.made_with where k.id = $1
