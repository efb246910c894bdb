"""A headless Chromium that resolves no name but this machine's address."""

from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def installed() -> bool:
    """Whether Debian's chromium and chromium-driver are here."""
    return which("chromium") is not None and which("chromedriver") is not None


@contextmanager
def chromium(*, script: bool = True) -> Iterator[webdriver.Chrome]:
    """A browser; without ``script`` it runs none."""
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.accept_insecure_certs = True  # of the tests' own authority
    options.binary_location = which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    driver = webdriver.Chrome(options=options, service=Service(which("chromedriver")))
    try:
        driver.implicitly_wait(0)
        yield driver
    finally:
        driver.quit()


def resize(driver: webdriver.Chrome, width: int, height: int = 900, *, dark: bool = False) -> None:
    """The size of the window, and which colours the system asks for."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
