"""``make crash``: hundreds of power failures under load, with real processes; nothing acknowledged may be lost.

Series after series of crash points (`crash_series`), each on a directory of its own, until so many operations were
reached and died at. On two cores 300 points take some fifteen minutes. What was found is printed with the seed of its
series and the directory that holds data, log and history, which is kept; the exit code is 1 then. ``--seed`` repeats
a run, as far as real processes repeat; ``--series-seed`` one series of it.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).parents[2]))

from crash_series import KINDS, Series

POINTS = 300
SERIES = 25
"""Points of one series: long enough for compaction and retention to have been at everything, short enough to read."""


class Run:
    """What a run has done so far."""

    def __init__(self, points, seed):
        self.wanted = points
        self.rng = random.Random(seed)
        self.kinds = Counter()
        self.recovering = self.torn = self.not_reached = 0
        self.acknowledged = self.topics = self.taken_back = 0
        self.found = []
        self.progressed = lambda reached: None

    @property
    def reached(self):
        return sum(self.kinds.values())

    def crashed(self, point):
        if not point.reached:
            self.not_reached += 1
            return
        self.kinds[point.kind] += 1
        self.recovering += point.recovering
        self.torn += point.torn
        self.progressed(self.reached)

    def one_series(self, seed, points):
        directory = Path(tempfile.mkdtemp(prefix=f"millstream-crash-{seed}-"))
        series = Series(directory, seed, on_point=self.crashed)
        try:
            series.run(points)
        except Exception as error:  # noqa: BLE001 - whatever it is, it was found, and the next series goes on
            notes = "\n".join(getattr(error, "__notes__", []))
            self.found.append(f"seed {seed}: {type(error).__name__}: {error}\n{notes}")
            print(f"found: {self.found[-1]}", flush=True)
        else:
            shutil.rmtree(directory)
        if series.workload is not None:
            self.acknowledged += series.acknowledged
            self.topics += series.workload.topics_changed()
        self.taken_back += series.taken_back

    def report(self, seconds):
        by_kind = ", ".join(f"{self.kinds[kind]} {kind}" for kind in KINDS)
        print(f"{self.reached} crash points ({by_kind}) in {seconds:.0f} s")
        print(f"{self.recovering} while recovering, {self.torn} torn; {self.not_reached} more were not reached in time")
        print(f"{self.acknowledged} acknowledged records and {self.topics} changes of topics checked")
        print(f"{self.taken_back} changes of files that no sync had covered taken back")
        print(f"{len(self.found)} series found something" if self.found else "nothing was lost")


def main():
    parser = argparse.ArgumentParser(description="Let the power fail at hundreds of operations of real brokers.")
    parser.add_argument("--points", type=int, default=POINTS, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the run (default: a new one)")
    parser.add_argument("--series-seed", type=int, help=f"repeat one series of {SERIES} points")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    run = Run(options.points, seed)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no broker is left behind
    if options.series_seed is not None:
        run.one_series(options.series_seed, SERIES)
    else:
        print(f"seed {seed}", flush=True)
        columns = (TextColumn("crash points"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, disable=not sys.stdout.isatty()) as bar:
            task = bar.add_task("", total=run.wanted)

            def progressed(reached):
                bar.update(task, completed=min(reached, run.wanted))
                if bar.disable and reached % 25 == 0:
                    print(f"{reached} of {run.wanted} after {time.monotonic() - began:.0f} s", flush=True)

            run.progressed = progressed
            try:
                while run.reached < run.wanted:
                    run.one_series(run.rng.randrange(1 << 32), min(SERIES, run.wanted - run.reached))
            except KeyboardInterrupt:
                print("stopped before the end")
    run.report(time.monotonic() - began)
    return 1 if run.found else 0


if __name__ == "__main__":
    sys.exit(main())
