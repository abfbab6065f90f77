"""The audit trail, signing keys, signed roots, receipts and exports."""
