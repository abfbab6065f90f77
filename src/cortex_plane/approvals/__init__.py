"""Approvals, votes, delegation, decisions and standing approvals."""
