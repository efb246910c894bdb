"""An elevation model as events: tiles with metadata, of which a consumer fetches only what it needs, and a picture.

The model is a real one, 344 × 403 heights of the hills around Jacksboro, Tennessee (NASA's SRTM), which matplotlib
ships. A producer cuts it into tiles; each is an event whose metadata say where it lies and how high it is, and whose
data are its heights. A consumer reads the metadata of all tiles, fetches the whole data of the high ones, of the others
one row in four by a strided view, and draws what it has. The last lines say how many bytes that took.

Run it with ``python examples/relief/run.py [PICTURE.png]``. It starts a broker of its own.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import cbook
from matplotlib import pyplot as plt

from millstream.events import EventsClient, StrideView
from millstream.model.events import DataPosition
from millstream.testing import Broker

if TYPE_CHECKING:
    from millstream.format.events import DataDescriptor

TILE_ROWS, TILE_COLUMNS = 43, 31
"""344 × 403 heights are 8 × 13 such tiles."""

COARSE = 4
"""Of a low tile, one row in so many is fetched."""

HIGH_M = 750
WAIT_S = 30.0


def main(picture: Path) -> None:
    """Push, select, fetch, draw."""
    model = np.load(cbook.get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))["elevation"].astype(np.int16)
    with Broker(memory="128MiB") as broker, EventsClient(broker.bootstrap) as client:
        client.create_topic("relief", partitions_count=2)
        topic = client.open_topic("relief")
        began = time.monotonic()
        with topic.producer() as producer:
            for row in range(0, model.shape[0], TILE_ROWS):
                for column in range(0, model.shape[1], TILE_COLUMNS):
                    tile = np.ascontiguousarray(model[row : row + TILE_ROWS, column : column + TILE_COLUMNS])
                    about = {"row": row, "column": column, "highest_m": int(tile.max())}
                    producer.push(about, tile)
        topic.complete()
        say(f"pushed {model.nbytes:,} bytes of heights as events in {time.monotonic() - began:.2f} s")
        heights, fetched, tiles = consume(topic, model.shape)
    say(f"{tiles['high']} tiles reach {HIGH_M} m and were fetched whole, of {tiles['low']} others one row in {COARSE}")
    say(f"fetched {fetched:,} of {model.nbytes:,} bytes ({100 * fetched / model.nbytes:.0f} %)")
    right = np.array_equal(heights[heights >= 0], model[heights >= 0])
    say("every height that was fetched is the one that was pushed" if right else "heights differ from what was pushed")
    draw(heights, picture)
    say(f"the picture is {picture}")
    if not right:
        raise SystemExit(1)


def consume(topic: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, int, dict[str, int]]:
    """The heights that were fetched, -1 elsewhere; how many bytes; how many tiles of each kind."""
    heights = np.full(shape, -1, dtype=np.int16)
    tiles = {"high": 0, "low": 0}
    fetched = 0
    row_bytes = TILE_COLUMNS * heights.itemsize

    def select(metadata: dict[str, int], descriptor: DataDescriptor) -> DataDescriptor:
        if metadata["highest_m"] >= HIGH_M:
            return descriptor
        rows = len(range(0, TILE_ROWS, COARSE))
        return descriptor.narrowed(StrideView(DataPosition(0), rows, row_bytes, (COARSE - 1) * row_bytes))

    def allocate(metadata: dict[str, int], descriptor: DataDescriptor) -> list[np.ndarray]:
        _ = metadata
        return [np.empty(descriptor.size // heights.itemsize, dtype=heights.dtype)]

    with topic.consumer("painter", data_selector=select, data_allocator=allocate) as consumer:
        for event in consumer:
            (flat,) = event.data
            fetched += flat.nbytes
            row, column = event.metadata["row"], event.metadata["column"]
            kind = "high" if event.metadata["highest_m"] >= HIGH_M else "low"
            tiles[kind] += 1
            step = 1 if kind == "high" else COARSE
            heights[row : row + TILE_ROWS : step, column : column + TILE_COLUMNS] = flat.reshape(-1, TILE_COLUMNS)
    return heights, fetched, tiles


def draw(heights: np.ndarray, picture: Path) -> None:
    """High tiles in full, of the others the rows that are there."""
    figure, axes = plt.subplots(figsize=(7.2, 6.0), layout="constrained")
    shown = np.ma.masked_less(heights, 0)
    image = axes.imshow(shown, cmap="gist_earth", vmin=int(shown.min()), vmax=int(shown.max()), interpolation="none")
    axes.set_title(f"Tiles that reach {HIGH_M} m in full, one row in {COARSE} of the others")
    axes.set_axis_off()
    axes.set_facecolor("white")
    figure.colorbar(image, ax=axes, label="height in m", shrink=0.85)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def say(sentence: str) -> None:
    sys.stdout.write(sentence + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "relief.png"))
