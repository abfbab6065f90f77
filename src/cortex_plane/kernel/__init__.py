"""What everything stands on: errors, canonical JSON, fields, pages, globs, conditions, documents."""
