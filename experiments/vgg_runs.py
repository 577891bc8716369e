"""Keeps how the runs of VGG-16 went: experiments/records/figures/vgg-16.json, for docs/results.md.

    python -m experiments.vgg_runs RUN_FOLDER...

Takes     folders of finished runs, with their metrics.jsonl.
Gives     for each run and row: step, phase, seconds so far, density, predicted bytes, error.
"""

import argparse
import json
from pathlib import Path

FILE = Path(__file__).parent / "records" / "figures" / "vgg-16.json"
KEPT = ("step", "phase", "seconds", "density", "predicted_bytes", "num_clusters", "val_error")


def main() -> None:
    """Add these runs to the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    for folder in parser.parse_args().folders:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        recipe = folder.name.removeprefix("vgg-16_").rpartition("_seed")[0]
        found[recipe] = [{key: row[key] for key in KEPT} for row in rows]
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
