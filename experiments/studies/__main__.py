"""The command of the studies; see `experiments.studies`."""

import argparse
import multiprocessing
import signal
import sys
from pathlib import Path

from experiments.studies import STUDIES, driver


def main() -> int:
    """Run studies, or list them."""
    parser = argparse.ArgumentParser(description="Run what figures and tables are made from.")
    parser.add_argument("study", nargs="*", help=f"of {', '.join(STUDIES)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each [2]")
    parser.add_argument(
        "--runs",
        type=Path,
        default=driver.ROOT.parent / "runs" / "studies",
        help="folder of finished runs",
    )
    parser.add_argument("--shorter", type=int, default=1, help="divide the steps; no record")
    parser.add_argument(
        "--partial", action="store_true", help="write the record from what is finished; run nothing"
    )
    parser.add_argument("--list", action="store_true", help="say what is done and left")
    options = parser.parse_args()
    unknown = [name for name in options.study if name not in STUDIES]
    if unknown:
        parser.error(f"unknown study {', '.join(unknown)}; known are {', '.join(STUDIES)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM acts like Ctrl-C
    try:
        _go(options)
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        print("stopped; the same command continues")
        return 130
    return 0


def _go(options: argparse.Namespace) -> None:
    for name in options.study or STUDIES:
        study = STUDIES[name]
        folder = options.runs / (name if options.shorter == 1 else f"{name}-{options.shorter}")
        record = driver.record_of(study)
        if options.list:
            done = driver.finished(study, folder)
            left = len(study.cases(done)) - len(done)
            told = "recorded" if record.exists() else f"{len(done)} done, {left} left"
            print(f"{name:15} {told}, {study.MINUTES:g} minutes a run")
        elif options.study or not record.exists():
            if options.partial:
                done = driver.finished(study, folder)
            else:
                done = driver.run(study, folder, jobs=options.jobs, shorter=options.shorter)
            short = options.shorter > 1
            driver.collect(study, done, folder / "data.json" if short else record)
            if hasattr(study, "MARK") and not short:
                document = driver.document_of(study)
                document.write_text(driver.written(study, document.read_text()))


if __name__ == "__main__":
    sys.exit(main())
