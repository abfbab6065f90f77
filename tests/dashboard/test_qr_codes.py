"""Links that open a chat with a code in it, and their images."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import segno

from cortex_plane.dashboard.qr_codes import BORDER, chat_link, qr_code

LINK = "https://wa.me/15550783881?text=%2Flink%20K7Q2-M5XA"


@pytest.mark.parametrize(
    ("channel", "account", "link"),
    [
        ("telegram", "@cortex_bot", "https://t.me/cortex_bot?start=K7Q2-M5XA"),
        ("telegram", "@a/b?c", "https://t.me/a%2Fb%3Fc?start=K7Q2-M5XA"),
        ("telegram", "", None),
        ("whatsapp", "+1 555-078-3881 (Cortex 24)", LINK),
        ("whatsapp", "+1 555-078-3881", LINK),
        ("whatsapp", "Cortex 15550783881", None),
        ("whatsapp", "12", None),
        ("slack", "@cortex in Emulated", None),
    ],
)
def test_chat_opens_with_the_code(channel: str, account: str, link: str | None) -> None:
    assert chat_link(channel, account, "K7Q2-M5XA") == link


def test_image_has_the_cells_of_the_code_and_needs_no_style() -> None:
    image = ElementTree.fromstring(str(qr_code(LINK)))
    code = segno.make(LINK, micro=False)
    size = code.symbol_size(border=BORDER)[0]
    assert image.attrib["viewBox"] == f"0 0 {size} {size}"
    attributes = {name for element in image.iter() for name in element.attrib}
    assert attributes == {"viewBox", "fill", "d", "stroke"}
    assert {element.tag.rpartition("}")[2] for element in image.iter()} == {"svg", "path"}
    assert _cells(image[1].attrib["d"]) == {
        (x + BORDER, y + BORDER) for y, row in enumerate(code.matrix) for x, cell in enumerate(row) if cell
    }


def _cells(path: str) -> set[tuple[int, int]]:
    """The dark ones: each `h` draws a line of them, each `m` moves on."""
    cells, x, y = set(), 0.0, -0.5
    for part in path.replace("h", "|h").replace("m", "|m").replace("M", "|M").split("|"):
        values = [float(value) for value in part[1:].replace("-", " -").split()]
        if part[:1] == "h":
            cells |= {(int(x) + step, int(y)) for step in range(int(values[0]))}
            x += values[0]
        elif part:
            dx, dy = values
            x, y = (dx, dy) if part[0] == "M" else (x + dx, y + dy)
    return cells
