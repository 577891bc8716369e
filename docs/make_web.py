"""Makes the small JavaScript of the browser export again: `make web`.

    src/reefknot/export/web/reef.js             -> reef.min.js, the decoder, to import from any page
    reef.js, page.js, page.css and page.html -> page.min.html, filled in by `reefknot export html`

terser comes from npm. Its output is committed, so that nobody else needs npm; the first line of
each file is a digest of its sources, and a test fails when they have changed. Regular expressions
would not do: names are half of the size, and shortening them takes a parser.
"""

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

WEB = Path(__file__).parents[1] / "src" / "reefknot" / "export" / "web"
TERSER = "terser@5.51.2"
# Properties of objects that never leave the decoder begin with an underscore.
PRIVATE = "_"
COMPRESS = "passes=4,ecma=2020,unsafe_arrows,unsafe_math,unsafe_methods,keep_fargs=false,"
COMPRESS += "reduce_funcs=false"  # inside others, long functions would leave them no short names
# What the decoder of a page can do without: indexed files, version 2, names of types, names of no
# UTF-8, and checks, since the file in the page has been decoded when the page was made.
CHECKS = r"^ *(check|spend|end)\(.*\);.*\n|^ *// not in pages:.*\n(?:.*\n)*?^ *// in pages:\n"
CUTS = {
    "export const decode": "const decode",
    "file[3] >> 7": "0",
    "(file, limit = 2 ** 28)": "(file)",
    "      limit -= sizes[owner];\n": "",
    "    limit -= sizes[i] = size + 4 * numScales;\n": "",
    '(ok, why = "not a valid .reef file") => {\n  if (!ok) throw Error(why);': "(ok) => {",
    "const spend = (number) => check((budget -= number) >= 0);\n": "",
    "  budget = most;\n": "",
    "  budget = 2 ** 20 + 64 * length; // so many characters\n": "",
    "  budget = 2 ** 21 + 16 * length - 128;\n": "",
    "(bytes, most, known = ": "(bytes, known = ",
    "    1e9,\n": "",
    "    ONE + 8 * length, // so many values of codebooks\n": "",
    ", 256 + 16 * data.length)": ")",
    '"IU"[type % 2] + 8 * width': "0",
    '"F32 F16 BF16 F64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ C64 BOOL"': '""',
    """.replace(/%ED(%[89AB].){2}|%C0%80/g, (bytes) =>
            letter(bytes.split`%`.reduce((sum, byte) => (sum << 6) | (("0x" + byte) & 63))),
          )""": "",
}
MADE = {
    "reef.min.js": ("reef.js",),
    "page.min.html": ("reef.js", "page.js", "page.css", "page.html"),
}


def digest(name: str) -> str:
    """What the first line of a file tells of its sources."""
    sources = [(WEB / source).read_bytes() for source in MADE[name]]
    return hashlib.sha256(b"\0".join([*sources, Path(__file__).read_bytes()])).hexdigest()[:8]


def minified(text: str) -> str:
    """The same program in fewer letters."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.mjs"
        source.write_text(
            re.sub(r"\bconst (?=\w|\[|\{)", "let ", text)
        )  # shorter, and joins others
        command = ["npx", "--yes", TERSER, str(source), "--module", "--compress", COMPRESS]
        command += ["--mangle", "--mangle-props", f"regex=/^{PRIVATE}/"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def minified_style(text: str) -> str:
    """The same sheet without comments and needless spaces."""
    text = re.sub(
        r"/\*.*?\*/|\n\s*", lambda found: "" if "/*" in found[0] else " ", text, flags=re.DOTALL
    )
    return re.sub(r"\s*([{}:;,])\s+|\s+([{};])|;\s*(})", r"\1\2\3", " ".join(text.split())).strip()


def made(name: str) -> str:
    """What a file should be."""
    if name == "reef.min.js":
        return f"// reef.js {digest(name)}\n{minified((WEB / 'reef.js').read_text())}\n"
    script = re.sub(CHECKS, "", (WEB / "reef.js").read_text(), flags=re.MULTILINE)
    for text, instead in CUTS.items():
        assert text in script, text
        script = script.replace(text, instead)
    page = "{" + (WEB / "page.js").read_text() + "}"  # a block, whose names are its own
    body = re.sub(r">\s+<", "><", (WEB / "page.html").read_text()).strip()
    style = minified_style((WEB / "page.css").read_text())
    return (
        f"<!-- {digest(name)} -->\n<style>{style}</style>{body}<script>{minified(script + page)}\n"
    )


if __name__ == "__main__":
    for name in MADE:
        text = made(name)
        (WEB / name).write_text(text)
        print(f"{name}: {len(text.encode()):,} bytes")
