"""Discord, over its REST API and the interactions that it posts."""

from cortex_plane.channels.discord.channel import DiscordChannel

__all__ = ["DiscordChannel"]
