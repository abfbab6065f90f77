"""Policies, verdicts, terms and simulations."""
