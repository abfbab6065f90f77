select fingerprint from plane_key
