"""What is left of an SVG file on a page."""

from convrec.report.svg import inline_svg

FILE = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="10pt" viewBox="0 0 10 5">
 <metadata>Matplotlib, https://matplotlib.org</metadata>
 <defs><style>*{stroke-linejoin: round}</style></defs>
 <g id="figure_1">
  <g id="empty"/>
  <defs><path id="m1" d="M 0 1.2345
L -0.01 2" style="stroke: #123456"/></defs>
  <g clip-path="url(#p1)"><use xlink:href="#m1" x="3.999" y="5"/></g>
  <text style="font-size: 9px; font-family: 'DejaVu Sans', sans-serif; fill: #abcdef" x="1" transform="rotate(-0 1 2)"
  >a &lt; b</text>
 </g>
 <defs><clipPath id="p1"><rect width="1"/></clipPath></defs>
</svg>"""


def test_only_the_drawing_is_left_with_ids_of_its_own_and_the_pages_colours() -> None:
    assert inline_svg(FILE, 'A "title"', "c1-", {"#123456": "var(--line-0)"}) == (
        '<svg viewBox="0 0 10 5" role="img" aria-label="A &quot;title&quot;">'
        '<defs><path id="c1-m1" d="M 0 1.2 L 0 2" style="stroke: var(--line-0)" /></defs>'
        '<use href="#c1-m1" x="4" y="5" />'
        '<text style="font-size: 9px; fill: #abcdef" x="1">a &lt; b</text></svg>'
    )
