"""Machines as directories: each file of ``trees`` has one, a file of the kernel a line."""

from pathlib import Path

from millstream.tune.facts import Broker, Facts

TREES = Path(__file__).parent / "trees"
NAMES = sorted(path.stem for path in TREES.glob("*.txt"))
BROKER = Broker("/srv/data", 1 << 30, 2, True)


def build(name: str, root: Path, broker: Broker = BROKER) -> Facts:
    """The machine ``name`` below ``root``. A name that ends with a slash is a directory, with what it lists in it."""
    for line in (TREES / f"{name}.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        path, _, value = line.partition(":")
        text = value.strip().replace("\\n", "\n").replace("\\t", "\t")
        if path.endswith("/"):
            (root / path.replace("/device/..", "/device")).mkdir(parents=True, exist_ok=True)
            for each in text.split():
                at = root / path.replace("/device/..", "") / each
                if not at.exists():
                    at.parent.mkdir(parents=True, exist_ok=True)
                    at.mkdir() if is_directory(path) else at.write_text("")
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if not (root / path).exists():
                (root / path).write_text(f"{text}\n")
    return Facts(str(root), broker)


def is_directory(path: str) -> bool:
    return not path.endswith("msi_irqs/")


def contents(root: Path) -> dict[str, bytes | str]:
    """Every file and link below ``root``."""
    return {
        str(path.relative_to(root)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
