select plane_now()
