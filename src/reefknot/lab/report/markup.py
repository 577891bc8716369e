"""Markup: elements whose attributes are always escaped, and text that is safe anywhere.

Takes     names and numbers that come from files, and may be anything.
Gives     strings that an HTML parser and an XML parser both read back as they were meant.
Unaware   of what a report shows.
"""

import html
import re

# Lone surrogates (a JSON escape can make one) cannot be written as UTF-8, and XML knows no control
# characters. Direction overrides would let a tensor's name rewrite the line that it is in.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_VOID = frozenset({"meta"})
_SHAPES = frozenset({"rect", "path", "line", "circle"})


def text(value: object) -> str:
    """A value as text between tags or inside an attribute.

    >>> text("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return html.escape(_UNPRINTABLE.sub("\ufffd", str(value)), quote=True)


def tag(name: str, /, *children: str, **attributes: object) -> str:
    """One element; `children` are markup already, attributes are escaped here.

    A trailing underscore is dropped and others become hyphens (`class_`, `aria_label`), an
    attribute that is None is left out, and floats are rounded to what a screen can show.

    >>> tag("rect", x=1.25, class_="bar", rx=None)
    '<rect x="1.2" class="bar"/>'
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        shown = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else text(value)
        parts.append(f'{key.removesuffix("_").replace("_", "-")}="{shown}"')
    head = " ".join(parts)
    if children:
        return f"<{head}>{''.join(children)}</{name}>"
    end = "" if name in _VOID else "/" if name in _SHAPES else f"></{name}"
    return f"<{head}{end}>"
