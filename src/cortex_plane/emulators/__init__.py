"""Vendors of channels on this machine: enough of their APIs to try a plane out and to test it without an account anywhere."""
