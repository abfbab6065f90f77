"""`python -m cortex_plane` is `cortex`."""

from cortex_plane.main.main import main

main()
