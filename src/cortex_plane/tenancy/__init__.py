"""Orgs, teams, members, keys, permissions, logins, connections and identities."""
