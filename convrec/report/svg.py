"""An SVG file of matplotlib's as a part of an HTML page: small, without ids that another could have, in CSS colours."""

import re
from collections.abc import Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

_NUMBER = re.compile(r"-?\d+\.\d+")
_FONT_FAMILY = re.compile(r" *font-family: [^;]*;?")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_HREF = "{http://www.w3.org/1999/xlink}href"
_DROPPED = {"metadata", "style", "clipPath"}  # a <style> would hold for the whole page; nothing leaves its axes


def inline_svg(text: str, label: str, prefix: str, colours: Mapping[str, str]) -> str:
    """`text`, an SVG file, as an <svg> element that takes its width from the page.

    Coordinates are rounded to tenths; ids that something refers to get the prefix, others go; `#rrggbb` becomes what
    colours has for it; text gets the page's font. label: what a screen reader says.
    """
    root = ElementTree.fromstring(text)
    referred = {element.get(_HREF, "").removeprefix("#") for element in root.iter()}
    view_box = root.attrib["viewBox"]
    children = [slim for child in root for slim in _slim(child, referred, prefix, colours)]
    svg = Element("svg", {"viewBox": view_box, "role": "img", "aria-label": label})
    svg.extend(children)
    return ElementTree.tostring(svg, encoding="unicode")


def _slim(element: Element, referred: set[str], prefix: str, colours: Mapping[str, str]) -> list[Element]:
    """What is left of an element: nothing, itself, or the children of a group that says nothing of its own."""
    tag = element.tag.rpartition("}")[2]
    if tag in _DROPPED:
        return []
    attributes = {}
    for name, value in element.attrib.items():
        if name == "id":
            if value in referred:
                attributes["id"] = prefix + value
        elif name == _HREF:
            attributes["href"] = f"#{prefix}{value.removeprefix('#')}"
        elif name == "style":
            value = _FONT_FAMILY.sub("", value)
            attributes["style"] = _COLOUR.sub(lambda colour: colours.get(colour[0], colour[0]), value)
        elif name != "clip-path" and not value.startswith("rotate(-0 "):
            attributes[name] = " ".join(_NUMBER.sub(_tenths, value).split())
    children = [slim for child in element for slim in _slim(child, referred, prefix, colours)]
    if tag in ("g", "defs") and not children:
        return []
    if tag == "g" and not attributes:
        return children
    slim = Element(tag, attributes)
    slim.text = element.text if tag == "text" else None
    slim.extend(children)
    return [slim]


def _tenths(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 1) + 0.0:g}"  # + 0.0: no -0
