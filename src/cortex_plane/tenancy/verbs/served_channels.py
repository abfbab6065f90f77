"""The channels that a plane serves: what a connection of each needs, who it is at its vendor, and what is wrong with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit
from uuid import UUID

from cortex_plane.kernel.addresses import Allowed, literal
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.notify.model.channels import (
    AccountRequest,
    ChannelTraits,
    ConnectionField,
    ConnectionIdentity,
    VendorAccount,
)
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable
from cortex_plane.tenancy.model import identities
from cortex_plane.tenancy.model.identities import (
    CHANNEL,
    Connection,
    ConnectionChange,
    ConnectionState,
    ServedChannel,
    ServedField,
)

IDENTIFY_SECONDS = 30.0
PROGRAM = "web"
"""The type of connections whose program, of the org's own, hands messages over with `POST /v1/connections/{id}/messages`."""
OWN = re.compile(r"x-[a-z0-9_-]+")
"""Other names for such programs."""
EMAIL = "email"
EMULATED = "emulated"
"""The key of `config` that marks a connection to an emulator of `cortex up`. No channel has a field of this name, so no request sets it."""


class VendorChannel(Protocol):
    """The part of a channel that sets a connection up, of `InteractiveChannel`."""

    @property
    def traits(self) -> ChannelTraits: ...

    @property
    def fields(self) -> Sequence[ConnectionField]: ...

    async def identify(self, target: Target, inbound_url: str | None) -> ConnectionIdentity: ...


@runtime_checkable
class AccountChannel(VendorChannel, Protocol):
    """What an interactive channel does besides where people show which account is theirs by logging in at the vendor. A connection can do
    it that has the fields `client_id` and `client_secret` of an application there."""

    def account_page(self, target: Target, request: AccountRequest) -> str:
        """The page of the vendor where somebody logs in and agrees."""
        ...

    async def read_account(self, target: Target, request: AccountRequest, code: str) -> VendorAccount:
        """Exchange the code for the account. What the vendor gives out for that is used for nothing else and given back. Raises
        ``InvalidInput`` where the vendor refuses the code, ``Undeliverable`` where it refuses the connection, ``TryAgain``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedChannels:
    vendors: Mapping[str, VendorChannel] = field(default_factory=dict)
    """By the type of their connections."""
    mailing: bool = True
    """Whether the plane sends mail."""
    allowed: Allowed = field(default_factory=Allowed)
    """Addresses that the operator lists besides the public internet."""
    public_url: str | None = None
    """Where others reach this plane; None where nobody set it."""
    local_url: str | None = None
    """Where programs on this machine reach it."""
    emulates: bool = False
    """Whether the emulators of `cortex up` run in this process."""

    @property
    def names(self) -> list[str]:
        return sorted([*self.vendors, CHANNEL, *([EMAIL] if self.mailing else [])])

    def serves(self, channel_type: str) -> bool:
        return channel_type in self.names or self.is_program(channel_type)

    def accepts(self, channel_type: str) -> bool:
        """Whether a connection of it may be created. Mail is set up by whoever runs the plane, before or after."""
        return channel_type == EMAIL or self.serves(channel_type)

    @staticmethod
    def is_program(channel_type: str) -> bool:
        """A program of the org carries its messages, and the plane itself sends nothing over it."""
        return channel_type == PROGRAM or OWN.fullmatch(channel_type) is not None

    def require_served(self, channel_type: str) -> None:
        if not self.accepts(channel_type):
            raise InvalidInput(
                f"This plane does not serve {channel_type}; it serves {', '.join(self.names)}.",
                code="channel_not_served",
                hint="For a program of your own that hands messages over, use `web` or a name that begins with `x-`.",
                field="channel_type",
            )

    def require_changeable(self, config: Mapping[str, object], change: ConnectionChange) -> None:
        """`cortex up` sets the values of connections to its emulators. Raises ``Conflict``."""
        if EMULATED not in config:
            return
        if change.config is not None or change.secrets is not None or (change.enabled and not self.emulates):
            raise Conflict(
                "This connection leads to an emulator of `cortex up`, which sets its values and runs it.",
                code="connection_emulated", hint="Create a connection of your own for this channel.",
            )  # fmt: skip

    def list_served(self) -> list[ServedChannel]:
        return [self._describe_channel(name) for name in [*self.names, PROGRAM]]

    def _describe_channel(self, name: str) -> ServedChannel:
        vendor = self.vendors.get(name)
        if vendor is None:
            return ServedChannel(channel_type=name, conversations=name == PROGRAM)
        traits = vendor.traits
        return ServedChannel(
            channel_type=name,
            fields=[
                ServedField(
                    name=field.name, description=field.description, secret=field.secret, required=field.required,
                    pattern=field.pattern, choices=list(field.choices),
                )
                for field in vendor.fields
            ],
            buttons=traits.most_buttons > 0,
            conversations=traits.conversations,
            listens=traits.listens,
        )  # fmt: skip

    def check_fields(self, channel_type: str, config: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        """What somebody set. Raises ``InvalidInput`` that names a field."""
        fields = {field.name: field for field in self._fields(channel_type)}
        for place, values in (("config", config), ("secrets", secrets)):
            for name, value in values.items():
                _check_field(channel_type, fields, f"{place}.{name}", name, value, in_secrets=place == "secrets")

    def require_fields(self, channel_type: str, config: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        """Whether all values are there that a connection needs."""
        for wanted in self._fields(channel_type):
            if wanted.required and wanted.name not in (secrets if wanted.secret else config):
                place = "secrets" if wanted.secret else "config"
                raise InvalidInput(
                    f"A connection of {channel_type} needs `{wanted.name}`: {wanted.description}",
                    hint=f"Send it in `{place}`, or with `--set {wanted.name}=…`.",
                    field=f"{place}.{wanted.name}",
                )

    def require_secrets_again(
        self,
        channel_type: str,
        stored: Mapping[str, str],
        sent: Mapping[str, str],
        *,
        before: str | None,
        after: str | None,
    ) -> None:
        """Where secrets go to another server, only somebody who knows them may send them there. ``before`` and ``after``: the values of
        `api_url`."""
        missing = [
            f"`{field.name}`"
            for field in self._fields(channel_type)
            if field.secret and field.name in stored and field.name not in sent
        ]
        if before != after and missing:
            raise InvalidInput(
                f"Another `api_url` needs the secrets again: {', '.join(missing)}. The server there gets them.",
                hint="Send all of them with the new address.",
                field="config.api_url",
            )

    def _fields(self, channel_type: str) -> Sequence[ConnectionField]:
        vendor = self.vendors.get(channel_type)
        return () if vendor is None else vendor.fields

    async def identify(
        self, channel_type: str, id: UUID, name: str, config: Mapping[str, str], secrets: Mapping[str, str]
    ) -> ConnectionIdentity | None:
        """Ask the vendor. None where the channel has none."""
        vendor = self.vendors.get(channel_type)
        if vendor is None:
            return None
        target = Target(connection_id=id, connection=name, config=config, secrets=secrets, address="", member="")
        try:
            async with asyncio.timeout(IDENTIFY_SECONDS):
                identity = await vendor.identify(target, self.inbound_url(channel_type, id, config))
            # At an emulator nobody has anything to do.
            return replace(identity, to_do=()) if EMULATED in config else identity
        except TimeoutError:
            raise _no_answer(f"{channel_type} did not answer within {IDENTIFY_SECONDS:g} seconds.") from None
        except TryAgain as error:
            raise _no_answer(error.message) from None
        except Undeliverable as error:
            raise InvalidInput(
                error.message,
                code="connection_refused",
                hint="Correct the values of the connection, then let it be checked again: `cortex connection check`.",
            ) from None

    def inbound_url(self, channel_type: str, id: UUID, config: Mapping[str, str]) -> str | None:
        """Where a vendor posts events. An emulator on this machine reaches the plane without a public address."""
        if channel_type not in self.vendors:
            return None
        base = None if EMULATED in config else self.public_url
        if base is None and _is_local(config.get("api_url", "")):
            base = self.local_url
        return None if base is None else f"{base.rstrip('/')}/v1/connections/{id}/inbound"

    @property
    def account_channels(self) -> Mapping[str, AccountChannel]:
        """Those on which people link accounts by logging in."""
        return {name: vendor for name, vendor in self.vendors.items() if isinstance(vendor, AccountChannel)}

    def callback_url(self, channel_type: str, id: UUID) -> str | None:
        """Where a vendor sends the browser of somebody who links their account. One for each connection: were it the same for all, the
        answer of one vendor could be passed off as another's."""
        base = self.public_url or self.local_url
        if channel_type not in self.account_channels or base is None:
            return None
        return f"{base.rstrip('/')}/access/channels/accounts/{id}/callback"

    def describe(self, connection: Connection) -> Connection:
        """With where its vendor posts, how it is, and what is to be done about it."""
        channel_type, health = connection.channel_type, connection.health
        inbound_url = self.inbound_url(channel_type, connection.id, connection.config)
        advice = list(connection.to_do)
        if connection.disabled_at is not None:
            state = ConnectionState.DISABLED
            advice.append(f"Enable it: `cortex connection enable {connection.id}`.")
        elif not self.serves(channel_type):
            state = ConnectionState.NOT_SERVED
            advice.append(self._why_not_served(channel_type))
        elif health.paused_until is not None:
            state = ConnectionState.PAUSED
        elif connection.failing_since is not None:
            state = ConnectionState.FAILING
            advice.append(f"Ask its vendor what is wrong: `cortex connection check {connection.id}`.")
        else:
            state = ConnectionState.OK
        vendor = self.vendors.get(channel_type)
        if vendor is not None and inbound_url is None and not vendor.traits.listens:
            advice.append("Set CORTEX_PUBLIC_URL: its vendor must reach the plane to deliver what people do there.")
        if health.given_up and state is not ConnectionState.DISABLED:
            advice.append("Look at what was given up: `cortex delivery list --status dead`.")
        callback_url = self.callback_url(channel_type, connection.id)
        return replace(connection, inbound_url=inbound_url, callback_url=callback_url, to_do=advice, state=state)

    def _why_not_served(self, channel_type: str) -> str:
        if channel_type == EMAIL:
            return "This plane sends no mail: whoever runs it sets CORTEX_SMTP_URL and CORTEX_MAIL_FROM."
        if channel_type in identities.KNOWN_CHANNELS:
            return f"This plane does not serve {channel_type}: nothing is sent over this connection."
        return "The plane sends nothing over it: a program of yours hands its messages over, or nobody does."


def _check_field(
    channel_type: str, fields: Mapping[str, ConnectionField], place: str, name: str, value: str, *, in_secrets: bool
) -> None:
    field = fields.get(name)
    if field is None:
        known = ", ".join(f"`{known}`" for known in fields)
        raise InvalidInput(
            f"A connection of {channel_type} has no `{name}`.",
            hint=f"It has {known}." if known else "Leave `config` and `secrets` out.",
            field=place,
        )
    if field.secret is not in_secrets:
        right = "secrets" if field.secret else "config"
        raise InvalidInput(
            f"`{name}` is {'a' if field.secret else 'no'} secret.", hint=f"Send it in `{right}`.", field=place
        )
    if field.choices and value not in field.choices:
        raise InvalidInput(f"`{name}` is one of {', '.join(field.choices)}.", hint=field.description, field=place)
    if field.pattern is not None and re.fullmatch(field.pattern, value) is None:
        raise InvalidInput(f"`{name}` is not written like one.", hint=field.description, field=place)


def _no_answer(message: str) -> TryAgain:
    error = TryAgain(message)
    error.hint = "Nothing was changed. Try again once its vendor answers."
    return error


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    address = literal(host)
    return host == "localhost" if address is None else address.is_loopback


NO_VENDORS = ServedChannels()
