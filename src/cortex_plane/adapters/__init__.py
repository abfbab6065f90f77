"""The doors: each validates, calls one operation and renders."""
