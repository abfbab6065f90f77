"""`python -m cortex_plane` is `cortex`."""

from cortex_plane.bootstrap.main import main

main()
