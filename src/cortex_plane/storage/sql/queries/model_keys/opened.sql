select sealed from model_key where provider = $1
