delete from model_key where provider = $1 returning last_characters
