"""A PNG of every page of the console, light and dark, 360, 1280 and 2560 pixels wide, for a look at them.

``make screenshots`` writes them into ``screenshots/``, and those of the documentation into ``docs/images``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "process"), str(ROOT / "tests")]

PAGES = {
    "overview": "/",
    "brokers": "/brokers",
    "broker": "/brokers/0",
    "topics": "/topics",
    "no-topics": "/topics?q=nothing-matches",
    "partitions": "/topics/orders",
    "messages": "/topics/orders/messages",
    "filtered": "/topics/orders/messages?filter=value.order.total+%3E+390+and+key+~+%22%5Eeu%22",
    "transactional": "/topics/payments/messages?all=1&from=oldest",
    "hostile": "/topics/emails/messages",
    "binary": "/topics/fraud-scores/messages",
    "nothing-yet": "/topics/nothing-yet/messages",
    "topic-groups": "/topics/orders/groups",
    "properties": "/topics/orders/properties",
    "new-topic": "/new-topic?like=customers",
    "change": "/topics/orders/change",
    "produce": "/topics/orders/produce?partition=0&offset=3",
    "reset": "/group/reset?id=billing",
    "change-setting": "/settings/change?broker=0&name=log.retention.ms",
    "rights": "/rights?who=alice&what=describe&type=topic&name=orders",
    "users": "/users",
    "quotas": "/quotas",
    "groups": "/groups",
    "group": "/group?id=warehouse",
    "transactions": "/transactions",
    "transaction": "/transaction?id=billing-7",
    "schemas": "/schemas",
    "schema": "/schema?name=orders-value&version=2&against=1",
    "settings": "/settings",
    "tiers": "/tiers",
    "caches": "/caches",
    "tables": "/pipelines",
    "machine": "/machine",
    "audit": "/audit",
}
OPENED = ("messages", "hostile", "binary")
DOCUMENTED = {
    ("messages", False): "console-messages",
    ("transactional", True): "console-transactional",
    ("schema", False): "console-schema",
    ("group", True): "console-group",
}
"""What docs/images has: page, dark, name there."""


def main() -> int:
    from console_browser import chromium, resize  # pyright: ignore[reportMissingImports]
    from console_support import shown  # pyright: ignore[reportMissingImports]

    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("pages", nargs="*", help=f"some of: {' '.join(PAGES)}")
    parser.add_argument("--out", type=Path, default=ROOT / "screenshots")
    arguments = parser.parse_args()
    arguments.out.mkdir(exist_ok=True)
    with shown() as (_, base), chromium() as driver:
        for name in arguments.pages or PAGES:
            for width in (1280, 360, 2560):
                for dark in (False, True):
                    resize(driver, width, dark=dark)
                    driver.get(base + PAGES[name])
                    if name in OPENED:
                        driver.execute_script("document.querySelector('.message').open = true")
                    if name in ("group", "partitions"):
                        time.sleep(5.5)  # the page's line has its next point after five seconds
                    driver.save_screenshot(str(arguments.out / f"{name}-{width}-{'dark' if dark else 'light'}.png"))
                    if width == 1280 and (name, dark) in DOCUMENTED:
                        resize(driver, 1440, 760, dark=dark)
                        driver.save_screenshot(str(ROOT / "docs" / "images" / f"{DOCUMENTED[name, dark]}.png"))
    print(f"screenshots: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
