"""Notifications, cards, deliveries and webhooks."""
