"""QR codes in a page: an image without styles, as the page's policy demands, of a link that a phone opens."""

from __future__ import annotations

import io
import re
from urllib.parse import quote

from markupsafe import Markup

_NUMBER = re.compile(r"\+?[0-9][0-9 .-]*")
_DIGITS = range(6, 16)
"""How many a phone number has, with its country."""
BORDER = 4
"""Cells of quiet around it, as the standard wants: on dark pages a phone would not find it without."""


def chat_link(channel_type: str, account: str, code: str) -> str | None:
    """Opens the chat with the bot or the number, with the code in it; None where the channel has no such link."""
    if channel_type == "telegram" and account.lstrip("@"):
        return f"https://t.me/{quote(account.lstrip('@'), safe='')}?start={quote(code, safe='')}"
    number = _NUMBER.match(account) if channel_type == "whatsapp" else None
    digits = re.sub(r"[^0-9]", "", number[0]) if number else ""
    if len(digits) in _DIGITS:
        return f"https://wa.me/{digits}?text={quote(f'/link {code}', safe='')}"
    return None


def qr_code(text: str) -> Markup:
    """SVG that is as large as its place."""
    import segno  # late: few requests need it

    image = io.BytesIO()
    segno.make(text, micro=False).save(
        image, kind="svg", xmldecl=False, nl=False, omitsize=True, border=BORDER, dark="#000", light="#fff",
        svgclass=None, lineclass=None,
    )  # fmt: skip
    return Markup(image.getvalue().decode())  # noqa: S704 -- it holds figures alone
