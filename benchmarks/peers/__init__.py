"""The same work done by our peers, each as it recommends for durable execution. Needs the ``bench`` dependencies.

Every workload is an async function that takes the URL of a database it may fill (an owner's login), makes its own
tables there and leaves nothing running behind, so that a runner can interleave rounds of several engines.
"""
