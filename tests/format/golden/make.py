"""Writes the golden files. Run once per format version: files that exist are never changed.

PYTHONPATH=src:tests python tests/format/golden/make.py
"""

import json
import zlib
from pathlib import Path

from reef_examples import EXAMPLES

from reefknot.format import encode


def main():
    for name, make in EXAMPLES.items():
        for effort in ("auto", "fast"):
            state = make()
            data = encode(state, effort)
            path = Path(__file__).with_name(f"v{data[3] & 0x7F}-{name}-{effort}.reef")
            if path.exists():
                continue
            path.write_bytes(data)
            content = {
                key: [dtype.tag, list(values.shape), zlib.crc32(values.tobytes())]
                for key, dtype, values in state.arrays()
            }
            text = json.dumps(content, indent=1, ensure_ascii=True) + "\n"
            path.with_suffix(".json").write_text(text)


if __name__ == "__main__":
    main()
