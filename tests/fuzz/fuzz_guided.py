"""The coverage-guided part, a process of its own: atheris decides by the branches that an input reaches what to bend
next.

Started by ``fuzz_run`` with atheris on the path. An input is two bytes that choose a target and the bytes for it. Half
of the mutations are the target's own, the others libFuzzer's. Findings do not end the run: each goes to standard
output as a line of JSON, and so does the progress; libFuzzer's own report goes to standard error.

Arguments: seed, inputs, folder of the corpus, file of recorded traffic (or an empty text).
"""

import base64
import json
import os
import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["millstream"]):
    import fuzz_judge
    import fuzz_targets
    import fuzz_traffic

from millstream.wire import codec

REPORT_EVERY = 1000
TRACE_EVERY = 16
INPUT_BYTES_MAX = 8192


def main() -> None:
    seed, inputs, corpus, traffic = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    targets = fuzz_targets.targets(fuzz_traffic.load(Path(traffic)) if traffic else None)
    for decode in codec._decoders.values():
        atheris.instrument_func(decode)  # written at run time, so no import shows them
    corpus.mkdir(parents=True, exist_ok=True)
    for number, target in enumerate(targets):
        for place, one in enumerate(target.seeds[:8]):
            (corpus / f"seed-{number:04d}-{place}").write_bytes(number.to_bytes(2, "big") + one[: INPUT_BYTES_MAX - 2])
    flags = [f"-seed={seed}", f"-runs={inputs}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=60", "-rss_limit_mb=0"]
    flags += [f"-artifact_prefix={corpus.parent}/", "-print_final_stats=1"]
    guided = Guided(targets)
    atheris.Setup([sys.argv[0], *flags, str(corpus)], guided.one, custom_mutator=guided.mutate)
    with fuzz_judge.fence():
        atheris.Fuzz()


class Guided:
    """What libFuzzer calls."""

    def __init__(self, targets: list[fuzz_targets.Target]) -> None:
        self.targets = targets
        self.done = 0

    def chosen(self, data: bytes) -> fuzz_targets.Target:
        return self.targets[int.from_bytes(data[:2], "big") % len(self.targets)]

    def one(self, data: bytes) -> None:
        if len(data) < 2:
            return
        self.done += 1
        found = fuzz_judge.judge(self.chosen(data), data[2:], trace=self.done % TRACE_EVERY == 0)
        if found is not None:
            report({"target": found.target, "data": base64.b64encode(found.data).decode()})
        if self.done % REPORT_EVERY == 0:
            report({"done": self.done})

    def mutate(self, data: bytes, size_max: int, seed: int) -> bytes:
        rng = Random(seed)
        if len(data) < 2 or rng.random() < 0.02:
            number = rng.randrange(len(self.targets))
            return number.to_bytes(2, "big") + rng.choice(self.targets[number].seeds)[: size_max - 2]
        if rng.random() < 0.5:
            return data[:2] + self.chosen(data).mutate(rng, data[2:])[: size_max - 2]
        return data[:2] + atheris.Mutate(data[2:], size_max - 2)


def report(line: dict[str, object]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main()
