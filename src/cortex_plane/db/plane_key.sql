select fingerprint from plane_key for share
