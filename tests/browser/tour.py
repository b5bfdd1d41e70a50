"""The tour: an animated picture of a recovery, made of screenshots of the test that plays it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from tests.browser.golden_pictures import few_colours

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZE, CAPTION = (1000, 625), 44
_INK, _PAPER, _RING = "#ffffff", "#18181b", "#dc2626"


@dataclass
class Tour:
    """Collects frames, if there is to be a tour."""

    is_made: bool
    _frames: list[tuple[Image.Image, int]] = field(default_factory=list)

    def show(self, page: Page, caption: str, seconds: float = 5, at: Locator | None = None) -> None:
        """Adds what a page shows now.

        Args:
            at: what the person clicks next, which gets a ring.
        """
        if not self.is_made:
            return
        if at is not None:
            at.scroll_into_view_if_needed()
        page.wait_for_load_state("networkidle")
        frame = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
        if at is not None:
            _draw_ring(frame, at)
        self._frames.append((_framed(frame, caption), round(1000 * seconds)))

    def write(self, still: int) -> None:
        """Writes the animated picture, and one of its frames for those who want no motion."""
        if not self.is_made:
            return
        pictures = [frame for frame, _ in self._frames]
        durations = [duration for _, duration in self._frames]
        pictures[0].save(
            FOLDER / "tour.webp", save_all=True, append_images=pictures[1:], duration=durations, loop=0,
            lossless=True, method=6, quality=100,
        )  # fmt: skip
        few_colours(pictures[still]).save(FOLDER / "tour.png", optimize=True)


def _draw_ring(frame: Image.Image, at: Locator) -> None:
    box = at.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    ImageDraw.Draw(frame).ellipse((x - 22, y - 22, x + 22, y + 22), outline=_RING, width=4)


def _framed(frame: Image.Image, caption: str) -> Image.Image:
    """Returns a frame of the tour: the page as large as it fits, above its caption."""
    width, height = SIZE
    scale = min(width / frame.width, height / frame.height)
    page = frame.resize((round(frame.width * scale), round(frame.height * scale)), Image.Resampling.LANCZOS)
    result = Image.new("RGB", (width, height + CAPTION), _PAPER)
    result.paste(page, ((width - page.width) // 2, 0))
    pen = ImageDraw.Draw(result)
    pen.text((width / 2, height + CAPTION / 2), caption, _INK, ImageFont.load_default(19), anchor="mm")
    return result
