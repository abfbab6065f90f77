"""WhatsApp, over the Cloud API of Meta and its webhooks."""

from cortex_plane.channels.whatsapp.channel import WhatsAppChannel

__all__ = ["WhatsAppChannel"]
