"""``make fuzz``: a million bent inputs at everything that reads bytes from outside; nothing may crash, hang or bloat.

Two parts. *Shaped* inputs are valid messages, recorded from stock clients or written by our encoders, with a field
bent (``fuzz_mutation``); *guided* ones come from atheris, which follows the branches that are reached. Both are judged
alike (``fuzz_judge``). On two cores a run takes two to four minutes; it can be stopped and goes on where it was, as
what is done is kept in ``.cache/fuzz/state.json``. When all is done the next run begins anew with another seed.

Every shaped input is named by seed, target and number, so a run with ``--seed`` repeats itself. A finding is made as
small as it goes and kept in ``.cache/fuzz/findings``; ``--keep NAME`` turns it into a line of
``tests/fuzz/findings.txt``, which ``make test`` tries from then on. The exit code is 1 when something was found.
"""

import argparse
import base64
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import fuzz_judge
import fuzz_targets
import fuzz_traffic
from fuzz_judge import Finding
from fuzz_targets import Target
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "fuzz"
STATE = CACHE / "state.json"
FINDINGS = CACHE / "findings"
KEPT = Path(__file__).with_name("findings.txt")
SITE = CACHE / "site"
ATHERIS = "atheris==3.0.0"

INPUTS = 1_000_000
GUIDED_SHARE = 0.3
BLOCK = 250
"""Inputs of one target in a row; a run that is stopped repeats at most one block."""

TRACE_EVERY = 16
"""One input in so many is traced for the memory that it takes."""

Progressed = Callable[[int], None]


def main() -> int:
    options = parse(sys.argv[1:])
    if options.keep:
        return keep(options.keep)
    state = State.load(options.inputs, options.seed)
    traffic_file = CACHE / "traffic.bin"
    if options.record or not traffic_file.exists():
        print("recording what stock clients send", flush=True)
        fuzz_traffic.record(traffic_file)
    traffic = fuzz_traffic.load(traffic_file)
    requests = sum(map(len, traffic.values()))
    targets = fuzz_targets.targets(traffic)
    seeds = sum(len(target.seeds) for target in targets)
    guided = 0 if options.shaped_only or not atheris_there() else int(options.inputs * GUIDED_SHARE)
    print(f"seed {state.seed}: {len(targets)} targets, {seeds} samples, {requests} recorded requests", flush=True)
    found = Findings(targets)
    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    began = time.monotonic()
    with Progress(*columns, disable=not sys.stdout.isatty()) as bar:
        state.shaped = run_part(
            bar, "shaped", options.inputs - guided, state.shaped, state, shaped(targets, state, found)
        )
        if guided:
            corpus = CACHE / "corpus"
            part = guide(state.seed, guided - state.guided, corpus, traffic_file, found)
            state.guided = run_part(bar, "guided", guided, state.guided, state, part)
    took_s = time.monotonic() - began
    print(f"{state.shaped} shaped and {state.guided} guided inputs, {took_s:.0f} s in this run, seed {state.seed}")
    found.report()
    STATE.unlink(missing_ok=True)
    return 1 if found.by_name else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Bend a million inputs at everything that reads bytes from outside.")
    parser.add_argument("--inputs", type=int, default=INPUTS, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat the run of this seed; default: go on, or a new one")
    parser.add_argument("--shaped-only", action="store_true", help="without the coverage-guided part")
    parser.add_argument("--record", action="store_true", help="record the clients' traffic anew")
    parser.add_argument("--keep", metavar="NAME", help="turn a finding into a test")
    return parser.parse_args(arguments)


class State:
    """How far a run is: what ``state.json`` holds."""

    def __init__(self, inputs: int, seed: int, shaped: int = 0, guided: int = 0) -> None:
        self.inputs, self.seed, self.shaped, self.guided = inputs, seed, shaped, guided

    @classmethod
    def load(cls, inputs: int, seed: int | None) -> "State":
        """Where the last run stopped, if it was one of these; a new one otherwise."""
        try:
            kept = cls(**json.loads(STATE.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            kept = None
        if kept is not None and kept.inputs == inputs and seed in (None, kept.seed):
            print(f"going on after {kept.shaped} shaped and {kept.guided} guided inputs")
            return kept
        return cls(inputs, int.from_bytes(os.urandom(4), "big") if seed is None else seed)

    def save(self) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        STATE.write_text(json.dumps(vars(self)), encoding="utf-8")


def run_part(bar: Progress, name: str, total: int, done: int, state: State, part: Iterator[int]) -> int:
    """Drive one part to its end; how many inputs it had. ``part`` gives how many were done since the last time."""
    task = bar.add_task(name, total=total, completed=done)
    shown = 0
    while done < total:
        step = next(part, 0)
        if not step:
            break
        done += step
        setattr(state, name, done)
        state.save()
        bar.update(task, completed=min(done, total))
        if bar.disable and done * 10 // total > shown:
            shown = done * 10 // total
            print(f"{name}: {done} of {total}", flush=True)
    return done


def shaped(targets: list[Target], state: State, found: "Findings") -> Iterator[int]:
    """Blocks of bent inputs, every target in turn, from where the state says."""
    block = state.shaped // BLOCK
    with fuzz_judge.fence():
        while True:
            target = targets[block % len(targets)]
            for number, data in enumerate(inputs_of(target, state.seed, block)):
                finding = fuzz_judge.judge(target, data, trace=number % TRACE_EVERY == 0)
                if finding is not None:
                    found.add(finding)
            block += 1
            yield BLOCK


def inputs_of(target: Target, seed: int, block: int) -> Iterator[bytes]:
    """The inputs of one block: a function of its arguments."""
    rng = Random(f"{seed}/{target.name}/{block}")
    for _ in range(BLOCK):
        yield target.mutate(rng, rng.choice(target.seeds))


def atheris_there() -> bool:
    """Whether atheris can be used; it is installed beside everything else when it is not there yet."""
    sys.path.append(str(SITE))
    if importlib.util.find_spec("atheris") is not None:
        return True
    uv = Path(sys.executable).with_name("uv")
    installed = subprocess.run(
        [
            uv,
            "pip",
            "install",
            "--quiet",
            "--only-binary",
            ":all:",
            "--python",
            sys.executable,
            "--target",
            SITE,
            ATHERIS,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode == 0:
        importlib.invalidate_caches()
        return True
    print(f"{ATHERIS} cannot be installed, so all inputs are shaped ones: {installed.stderr.strip()[-300:]}")
    return False


def guide(seed: int, inputs: int, corpus: Path, traffic: Path, found: "Findings") -> Iterator[int]:
    """Run the coverage-guided part in its own process; gives the inputs done, adds what it found."""
    corpus.parent.mkdir(parents=True, exist_ok=True)
    log = CACHE / "guided.log"
    path = os.pathsep.join((str(SITE), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    command = [
        sys.executable,
        str(Path(__file__).with_name("fuzz_guided.py")),
        str(seed),
        str(inputs),
        str(corpus),
        str(traffic),
    ]
    done = 0
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, "PYTHONPATH": path}
        ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            said = json.loads(line)
            if "done" in said:
                yield said["done"] - done
                done = said["done"]
            else:
                found.look_at(said["target"], base64.b64decode(said["data"]))
    said = log.read_text(encoding="utf-8", errors="replace")
    coverage = [part for part in said.splitlines() if "cov:" in part]
    if coverage:
        print(f"guided: {coverage[-1].strip()}", flush=True)
    if child.returncode:
        found.ended("guided", said[-2000:])
    else:
        yield inputs - done


class Findings:
    """What was found, one a cause; each made small and kept on disk."""

    def __init__(self, targets: list[Target]) -> None:
        self.targets = {target.name: target for target in targets}
        self.by_name: dict[str, Finding] = {}

    def add(self, finding: Finding) -> None:
        if finding.name in self.by_name:
            return
        small = fuzz_judge.shrink(self.targets[finding.target], finding)
        self.by_name[small.name] = small
        FINDINGS.mkdir(parents=True, exist_ok=True)
        (FINDINGS / f"{small.name}.txt").write_text(line_of(small), encoding="utf-8")
        print(
            f"found: {small.target}: {small.kind}: {small.where}: {small.detail} ({len(small.data)} bytes)", flush=True
        )

    def look_at(self, name: str, data: bytes) -> None:
        """Judge again, outside of atheris, what it stopped at."""
        with fuzz_judge.fence():
            finding = fuzz_judge.judge(self.targets[name], data, trace=True)
            if finding is not None:
                self.add(finding)

    def ended(self, name: str, said: str) -> None:
        """A process died: nothing in Python may do that."""
        self.by_name[name] = Finding(name, "crash", "process", said, b"")

    def report(self) -> None:
        if not self.by_name:
            print("nothing found")
        for name, finding in self.by_name.items():
            print(f"{name}: {finding.where}: {finding.detail}")
            if finding.data:
                print(f"  as a test: {sys.executable} tests/fuzz/fuzz_run.py --keep {name}")


def line_of(finding: Finding) -> str:
    """A line of ``findings.txt``: target, bytes, what happened."""
    words = " ".join(f"{finding.kind}: {finding.where}".split())
    return f"{finding.target} | {finding.data.hex()} | {words}\n"


def keep(name: str) -> int:
    line = (FINDINGS / f"{name}.txt").read_text(encoding="utf-8")
    if line not in KEPT.read_text(encoding="utf-8"):
        with KEPT.open("a", encoding="utf-8") as file:
            file.write(line)
    print(f"{KEPT.relative_to(ROOT)} has it now")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; the next run goes on from here")
        sys.exit(130)
