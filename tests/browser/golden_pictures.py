"""Golden pictures of the pages: how they are compared, and how ``make screenshots`` writes them.

Two renderings of one page differ in the edges of letters: hinting, sub-pixels, a new version of the browser. So not
pixels are compared but averages of small squares, of which a few may be far apart. Measured on these pages: without
antialiasing 0.1 % of the squares differ; without one arc of the timeline, or its marks, 0.4 % and more. One row of a
table is less of a page, but a quarter of the squares of its line.

Other fonts have letters of other widths, and text then wraps elsewhere: half of a narrow page may move. A picture
records how wide a text was; where it has another width, only a page that is blank, unstyled or of the wrong colours is
a difference.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, PngImagePlugin

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Locator, Page

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "pages"
SQUARE = 8
"""Width and height of a square, in pixels."""
FAR = 24
"""Difference of a square's averages in one colour from which on it is far apart; of black and white it is 255."""
MOST_FAR, MOST_FAR_IN_A_LINE, MOST_FAR_WITH_OTHER_FONTS = 0.003, 0.05, 0.4
"""Share of squares that may be far apart: of the page, of each line of squares, and of a page with other fonts."""
_SAME_WIDTH = 0.005
_COLOURS = 160
_MOST_TRIES = 20
_WIDTH = "text-width"
_MEASURE = """() => {
    const pen = document.createElement("canvas").getContext("2d");
    return ["sans-serif", "monospace"].map(family => {
        pen.font = "16px " + family;
        return pen.measureText("Checkpoint 54, committed 29 min. ago by run 9").width;
    });
}"""


@dataclass(frozen=True)
class Part:
    """The part of a page that begins with an element. Its height is fixed: that of the element follows its texts."""

    element: Locator
    height: int

    def clip(self) -> FloatRect:
        self.element.scroll_into_view_if_needed()
        box = self.element.bounding_box()
        assert box is not None
        return {"x": round(box["x"]), "y": round(box["y"]), "width": round(box["width"]), "height": self.height}


def check_picture(page: Page, name: str, *, renews: bool, part: Part | None = None) -> None:
    """Compares a page, or a part of it, with its golden picture, or writes that picture."""
    taken = Image.open(io.BytesIO(_settled(page, part))).convert("RGB")
    widths: list[float] = page.evaluate(_MEASURE)
    path = FOLDER / f"{name}.png"
    if renews:
        write_picture(path, taken, widths)
        return
    assert path.exists(), f"{path} does not exist: run 'make screenshots'"
    golden = Image.open(path)
    known = [float(each) for each in str(golden.info[_WIDTH]).split()]
    same_fonts = all(abs(now - then) <= _SAME_WIDTH * then for now, then in zip(widths, known, strict=True))
    far = far_apart(golden.convert("RGB"), taken)
    page_share, line_share = float(far.mean()), float(far.mean(axis=1).max())
    is_like = page_share <= MOST_FAR and line_share <= MOST_FAR_IN_A_LINE
    assert is_like if same_fonts else page_share <= MOST_FAR_WITH_OTHER_FONTS, (
        f"{page_share:.2%} of the page {name}, and {line_share:.0%} of a line, is not as in its golden picture;"
        " look at the page, and run 'make screenshots' if it is right"
    )


def _settled(page: Page, part: Part | None) -> bytes:
    """Returns a screenshot that the next one is equal to: the page draws nothing any more."""
    before = b""
    for _ in range(_MOST_TRIES):
        page.wait_for_load_state("networkidle")
        after = page.screenshot(animations="disabled", clip=None if part is None else part.clip())
        if after == before:
            break
        before = after
    return before


def write_picture(path: Path, picture: Image.Image, widths: list[float]) -> None:
    """Writes a picture with few colours, which makes the file small."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = PngImagePlugin.PngInfo()
    facts.add_text(_WIDTH, " ".join(f"{each:.2f}" for each in widths))
    few_colours(picture).save(path, pnginfo=facts, optimize=True)


def few_colours(picture: Image.Image) -> Image.Image:
    """Returns a picture with its most different colours; the most frequent ones would all be greys of letters."""
    return picture.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def far_apart(one: Image.Image, other: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Returns whether the averages of each square are far apart, by line; for pictures of different sizes one True."""
    if one.size != other.size:
        return np.ones((1, 1), bool)
    averages = [_averages(each) for each in (one, other)]
    return np.asarray(np.abs(averages[0] - averages[1]).max(axis=2) > FAR)


def _averages(picture: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    width, height = picture.size
    squares = picture.resize((width // SQUARE, height // SQUARE), Image.Resampling.BOX)
    return np.asarray(squares, dtype=np.float64)
