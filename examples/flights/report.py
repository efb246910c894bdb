"""Show what came out: a table, a chart, the figures, and where to look next."""

from collections import defaultdict
from pathlib import Path

from pipeline import Results
from rich.console import Console
from rich.table import Table

from load import Loaded

SHOWN_AIRLINES = 6


def show(loaded: Loaded, results: Results, data: Path, console: Console) -> None:
    console.print("[bold]4.[/bold] the result")
    console.print(summary(results))
    chart = data / "delays.png"
    draw(results, chart)
    console.print(figures(loaded, results))
    console.print(f"   table   {results.parquet}\n   topic   delays-by-week: {results.sent:,} rows, sent at least once")
    console.print(f"   chart   {chart}\n")
    console.print("Start the broker again on these data and look around:", style="bold")
    console.print(
        f"   .venv/bin/millstream start --data {data / 'broker'}\n"
        "   .venv/bin/millstream topic describe flights\n"
        "   .venv/bin/millstream consume delays-by-week --from beginning --count 5\n"
        "   .venv/bin/millstream config list\n"
        "ARCHITECTURE.md is the map of the code, examples/flights the source of this demo.",
        soft_wrap=True,
    )


def summary(results: Results) -> Table:
    """The airlines with the most flights, over the whole year."""
    flights: dict[str, int] = defaultdict(int)
    departed: dict[str, int] = defaultdict(int)
    delays: dict[str, float] = defaultdict(float)
    worst: dict[str, tuple[float, str]] = {}
    for row in results.table:
        name, mean = str(row["name"]), row["mean_delay"]
        flights[name] += int(row["flights"])  # type: ignore[call-overload]
        if mean is not None:
            departed[name] += int(row["departed"])  # type: ignore[call-overload]
            delays[name] += float(mean) * int(row["departed"])  # type: ignore[arg-type, call-overload]
            worst[name] = max(worst.get(name, (0.0, "")), (float(mean), f"{row['week']:%d %b}"))  # type: ignore[arg-type]
    table = Table(title="Departures from New York in 2013, by airline", title_justify="left")
    for column, justify in (
        ("airline", "left"),
        ("flights", "right"),
        ("mean delay", "right"),
        ("worst week of", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name in sorted(flights, key=flights.__getitem__, reverse=True):
        delay, week = worst[name]
        table.add_row(
            name, f"{flights[name]:,}", f"{delays[name] / departed[name]:.1f} min", f"{week} ({delay:.0f} min)"
        )
    return table


def figures(loaded: Loaded, results: Results) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 3, 0, 3))
    table.add_row(
        "in",
        f"{loaded.records:,} records, {loaded.value_bytes / 1e6:.0f} MB in {loaded.seconds:.1f} s, "
        f"{loaded.records / loaded.seconds:,.0f} records/s",
        "every one synced before its ack",
    )
    table.add_row(
        "Spark",
        f"{results.records:,} records in {results.seconds:.1f} s, cold",
        f"{results.segment_rows:,} straight from segment files, {results.tail_rows:,} from the broker's tail",
    )
    table.add_row(
        "scan",
        f"{results.records:,} records in {results.scan_seconds:.1f} s, warm",
        f"{results.records / results.scan_seconds:,.0f} records/s into Spark",
    )
    return table


def draw(results: Results, path: Path) -> None:
    """Mean departure delay by week, a line for each of the largest airlines."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    lines: dict[str, list[tuple[object, float]]] = defaultdict(list)
    flights: dict[str, int] = defaultdict(int)
    for row in results.table:
        if row["mean_delay"] is not None:
            lines[str(row["name"])].append((row["week"], float(row["mean_delay"])))  # type: ignore[arg-type]
        flights[str(row["name"])] += int(row["flights"])  # type: ignore[call-overload]
    figure, axes = plt.subplots(figsize=(10, 5), layout="constrained")
    for name in sorted(flights, key=flights.__getitem__, reverse=True)[:SHOWN_AIRLINES]:
        weeks, means = zip(*sorted(lines[name]), strict=True)
        axes.plot(weeks, means, label=name, linewidth=1.6)
    axes.set_title("Mean departure delay from New York by week, 2013", loc="left")
    axes.set_ylabel("minutes")
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, ncols=SHOWN_AIRLINES, fontsize="small", loc="outside lower center")
    figure.savefig(path, dpi=130)
    plt.close(figure)
