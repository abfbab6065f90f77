"""Rules of approvals: pure decisions."""
