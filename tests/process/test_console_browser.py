"""The console of a broker in a real browser: every page, its script, its keys, without a script, hostile names, logins.
``make test-console`` runs these; they need Debian's chromium and chromium-driver.
"""

import json

import pytest

pytest.importorskip("selenium")

from confluent_kafka import Producer
from console_browser import chromium, installed, resize
from console_support import closed, secured, shown
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.browser]
if not installed():
    pytestmark.append(pytest.mark.skip(reason="chromium and chromium-driver are not installed"))

PAGES = (
    "/",
    "/brokers",
    "/brokers/0",
    "/topics",
    "/topics?q=nothing-matches",
    "/topics/orders",
    "/topics/orders/messages",
    "/topics/payments/messages?all=1&from=oldest",
    "/topics/emails/messages",
    "/topics/nothing-yet/messages",
    "/topics/orders/groups",
    "/topics/orders/properties",
    "/groups",
    "/group?id=billing",
    "/transactions",
    "/transaction?id=billing-7",
    "/schemas",
    "/schema?name=orders-value&version=2&against=1",
    "/settings",
    "/rights?who=alice&what=describe&type=topic&name=orders",
    "/users",
    "/quotas",
    "/new-topic?like=customers",
    "/topics/orders/change",
    "/topics/orders/produce?partition=0&offset=3",
    "/group/reset?id=billing",
    "/settings/change?broker=0&name=log.retention.ms",
    "/tiers",
    "/caches",
    "/pipelines",
    "/machine",
    "/audit",
    "/audit?q=nothing-matches",
)


@pytest.fixture(scope="module")
def seen():
    with shown() as found:
        yield found


@pytest.fixture(scope="module")
def browser(seen):
    with chromium() as driver:
        driver.base = seen[1]
        yield driver


@pytest.fixture(autouse=True)
def quiet(browser):
    """A line in the browser's console, or a report of its content policy, fails a test."""
    yield
    assert browser.get_log("browser") == []


def wait(browser, condition, seconds=15):
    """Until it holds. A page that is swapped just now has elements that are gone a moment later."""
    ignored = [NoSuchElementException, StaleElementReferenceException]
    return WebDriverWait(browser, seconds, poll_frequency=0.05, ignored_exceptions=ignored).until(lambda _: condition())


def find(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def every(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


@pytest.mark.parametrize("width", [360, 1440, 2560])
def test_every_page_fits_its_window(browser, width):
    resize(browser, width)
    look_at(browser, browser.base)


CONTRAST = """
const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const over = (colours) => {  // painted one over the other, as the browser does
  canvas.clearRect(0, 0, 1, 1);
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const seen = new Set([...document.querySelectorAll("input, textarea, select")]);
while (texts.nextNode()) if (texts.currentNode.data.trim()) seen.add(texts.currentNode.parentElement);
for (const element of seen) {
  if (!element.checkVisibility({ visibilityProperty: true }) || element.closest(".skip")) continue;
  const behind = [];
  for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
  const style = getComputedStyle(element, element.placeholder && !element.value ? "::placeholder" : null);
  const [a, b] = [light(over(behind)), light(over([...behind, style.color]))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.push(`${element.tagName} ${ratio.toFixed(2)} ${element.textContent.slice(0, 40)}`);
}
return found;
"""


OUTLINE = "const s = getComputedStyle(arguments[0]); return [s.outlineStyle, parseFloat(s.outlineWidth)]"


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_the_contrast_of_aa(browser, dark):
    resize(browser, 1440, dark=dark)
    for path in PAGES:
        browser.get(browser.base + path)
        for opened in every(browser, "details")[:2]:
            browser.execute_script("arguments[0].open = true", opened)
        assert browser.execute_script(CONTRAST) == [], path
    browser.execute_script("document.querySelector('h1').style.color = '#80808080'")
    assert len(browser.execute_script(CONTRAST)) == 1, "the judge sees a grey heading"
    resize(browser, 1440)


def test_what_has_the_focus_is_seen(browser):
    resize(browser, 1440)
    for path in ("/", "/topics", "/topics/orders/messages", "/rights", "/new-topic"):
        browser.get(browser.base + path)
        focused = find(browser, "body")
        for _ in range(30):
            focused.send_keys(Keys.TAB)
            focused = browser.switch_to.active_element
            style, width = browser.execute_script(OUTLINE, focused)
            assert focused.tag_name == "body" or (style != "none" and width >= 2), (path, focused.text)


def look_at(browser, base, pages=PAGES):
    for path in pages:
        browser.get(base + path)
        assert find(browser, "h1").text not in ("", "Not Found", "The cluster refuses that"), path
        assert browser.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0, path


def test_a_console_beside_the_cluster_says_what_it_cannot_know(browser):
    resize(browser, 1440)
    with shown(alone=True) as (_, base):
        look_at(
            browser,
            base,
            ("/", "/brokers", "/topics", "/topics/orders/messages", "/groups", "/settings", "/users", "/connect"),
        )
        for path in ("/tiers", "/caches", "/pipelines", "/machine", "/audit"):
            browser.get(base + path)
            assert "Only a Millstream broker knows this" in find(browser, "main").text


def test_pages_of_the_broker_itself_show_it(browser):
    resize(browser, 1440)
    browser.get(browser.base + "/")
    find(browser, "body").send_keys("gm")
    wait(browser, lambda: find(browser, "h1").text == "This broker")
    assert "payments-archive" in find(browser, "main table").text
    find(browser, "nav.tabs a[href$='/caches']").click()
    wait(browser, lambda: "log cache" in find(browser, "main").text)
    find(browser, "nav.tabs a[href$='/pipelines']").click()
    wait(browser, lambda: "No topic is a table" in find(browser, "main").text)
    find(browser, "nav.tabs a[href$='/machine']").click()
    wait(browser, lambda: "Kernel" in find(browser, "main").text)
    find(browser, "nav.tabs a[href$='/audit']").click()
    wait(browser, lambda: every(browser, "#q"))
    find(browser, "#q").send_keys("CreateTopics")
    wait(browser, lambda: {tag.text for tag in every(browser, "td.wide .tag")} == {"change"})


def test_a_visitor_logs_in_and_out():
    with closed() as (b, words), chromium() as driver:
        resize(driver, 1440)
        base = f"{b.http}/console"
        driver.get(base + "/topics?q=ord")
        wait(driver, lambda: find(driver, "h1").text == "Log in")
        find(driver, "input[name=name]").send_keys("reader")
        find(driver, "input[name=password]").send_keys("no such word", Keys.ENTER)
        wait(driver, lambda: "login failed" in find(driver, "[role=alert]").text)
        find(driver, "input[name=name]").send_keys("reader")
        find(driver, "input[name=password]").send_keys(words["reader"], Keys.ENTER)
        wait(driver, lambda: find(driver, "h1").text == "Topics")
        assert driver.current_url.endswith("/console/topics?q=ord")
        cookie = driver.get_cookie(f"millstream-login-{b.http.rpartition(':')[2]}")
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
        assert "User:reader" in find(driver, ".foot").text
        driver.get(base + "/audit")
        assert "User:reader needs ALTER on the cluster" in find(driver, "main").text
        find(driver, "form[action$='/logout'] button").click()
        wait(driver, lambda: find(driver, "h1").text == "Log in")
        driver.get(base + "/topics")
        wait(driver, lambda: find(driver, "h1").text == "Log in")
        refused = [line for line in driver.get_log("browser") if "403" not in line["message"]]
        assert refused == []  # the refused login and the refused page are what the browser says


def test_pages_are_swapped_and_the_way_back_works(browser):
    resize(browser, 1440)
    browser.get(browser.base + "/topics")
    browser.execute_script("window.stayed = true")
    find(browser, 'a[href$="/topics/orders/messages"]').click()
    wait(browser, lambda: find(browser, "h1").text == "orders")
    assert browser.execute_script("return window.stayed")
    assert browser.current_url.endswith("/topics/orders/messages")
    assert "orders" in browser.title
    browser.back()
    wait(browser, lambda: find(browser, "h1").text == "Topics")
    assert browser.execute_script("return window.stayed")


def test_a_search_filters_as_one_types_and_keeps_the_cursor(browser):
    browser.get(browser.base + "/topics")
    find(browser, "#q").send_keys("ship")
    wait(browser, lambda: [link.text for link in every(browser, "td.name a")] == ["shipments"])
    browser.switch_to.active_element.send_keys("x")
    wait(browser, lambda: "No topic has" in find(browser, "main").text)
    assert browser.switch_to.active_element.get_attribute("value") == "shipx"


def test_the_keyboard_alone_opens_a_message(browser):
    browser.get(browser.base + "/")
    find(browser, "body").send_keys("gt")
    wait(browser, lambda: find(browser, "h1").text == "Topics")
    find(browser, "body").send_keys("/")
    browser.switch_to.active_element.send_keys("orders")
    wait(browser, lambda: len(every(browser, "td.name a")) == 1)
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    find(browser, "body").send_keys("j")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait(browser, lambda: every(browser, ".message"))
    find(browser, "body").send_keys("j")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait(browser, lambda: find(browser, ".message[open] pre").is_displayed())
    find(browser, "body").send_keys("?")
    wait(browser, lambda: find(browser, "#keys").is_displayed())


def test_a_live_view_shows_new_records_on_top_and_stops(browser, seen):
    browser.get(browser.base + "/topics/shipments/messages")
    find(browser, "[data-live]").click()
    wait(browser, lambda: find(browser, "[data-live]").text == "Stop")
    producer = Producer(seen[0].client)
    sent = 0

    def arrived():
        nonlocal sent
        sent += 1
        producer.produce("shipments", json.dumps({"parcel": sent}))
        producer.flush()
        return len(every(browser, ".message")) >= 3

    wait(browser, arrived)
    newest = find(browser, ".message .value").text
    assert '"parcel":' in newest
    find(browser, "[data-live]").click()
    assert find(browser, "#live-state").text == "Stopped."


def test_a_search_goes_on_by_itself_until_the_end(browser):
    browser.get(browser.base + "/topics/orders/messages?from=oldest&limit=20&filter=value.order.total+%3E+200")
    before = len(every(browser, ".message"))
    assert before == 20
    find(browser, "a[data-search]").click()
    wait(
        browser, lambda: len(every(browser, ".message")) >= 500 or "that is all" in find(browser, "#search-state").text
    )
    assert len(every(browser, ".message")) > 400


def test_hostile_names_stay_text(browser):
    browser.get(browser.base + "/topics/emails/messages")
    find(browser, ".message summary").click()
    assert "onerror=alert" in find(browser, ".message pre").text
    assert every(browser, "main img, main script") == []
    browser.get(browser.base + "/groups")
    names = [link.text for link in every(browser, "td.name a")]
    hostile = next(name for name in names if name.startswith("mailer"))
    find(browser, "#q").send_keys("mailer")
    wait(browser, lambda: len(every(browser, "td.name a")) == 1)
    find(browser, "td.name a").click()
    wait(browser, lambda: find(browser, "h1").text == hostile)
    assert every(browser, "main img, main script") == []


def test_a_topic_is_made_and_deleted_by_clicks(browser):
    browser.get(browser.base + "/topics")
    find(browser, "header a.main").click()
    wait(browser, lambda: find(browser, "h1").text == "New topic")
    find(browser, "input[name=name]").send_keys("made-by-clicks")
    find(browser, 'button[value="preview"]').click()
    wait(browser, lambda: "This would be created" in find(browser, "main").text)
    find(browser, 'button[value="do"]').click()
    wait(browser, lambda: find(browser, "h1").text == "made-by-clicks")
    assert "was created" in find(browser, "[role=status]").text
    browser.get(browser.base + "/topics/made-by-clicks/change")
    find(browser, 'form[action$="/delete"] button').click()
    wait(browser, lambda: every(browser, "input[name=typed]"))
    find(browser, "input[name=typed]").send_keys("made-by-clicks")
    find(browser, 'button[value="do"]').click()
    wait(browser, lambda: find(browser, "h1").text == "Topics")
    assert "was deleted" in find(browser, "[role=status]").text


def test_a_group_page_draws_its_lag_while_it_is_open(browser):
    browser.get(browser.base + "/group?id=warehouse")
    wait(browser, lambda: every(browser, "#lag svg.chart"))
    assert "Lag over the last" in find(browser, "#lag").text


def test_light_and_dark_are_chosen_without_a_script(seen):
    with chromium(script=False) as plain:
        plain.get(seen[1] + "/topics/orders/messages")
        find(plain, 'button[value="dark"]').click()
        wait(plain, lambda: find(plain, "html").get_attribute("data-theme") == "dark")
        assert plain.current_url.endswith("/topics/orders/messages")
        find(plain, "#filter").send_keys('value.state = "paid"', Keys.ENTER)
        wait(plain, lambda: "filter=" in plain.current_url)
        assert every(plain, ".message")
        assert not find(plain, "[data-live]").is_displayed()
        find(plain, ".message summary").click()
        assert '"state": "paid"' in find(plain, ".message pre").text
        find(plain, "nav.pager a.button").click()
        wait(plain, lambda: "before=" in plain.current_url)


def test_visitors_of_three_brokers_with_tls_log_in_and_see_what_they_may(browser, tmp_path):
    resize(browser, 1440)
    with secured(tmp_path) as found:
        for number, (user, seen_too) in enumerate((("reader", False), ("admin", True))):
            base = f"{found.brokers[number].http}/console"
            browser.get(base + "/topics")
            assert find(browser, "h1").text == "Log in"
            assert "With a token instead" in find(browser, "main").text
            find(browser, "input[name=name]").send_keys(user)
            find(browser, "input[name=password]").send_keys(found.words[user], Keys.ENTER)
            wait(browser, lambda: find(browser, "h1").text == "Topics")
            names = [link.text for link in every(browser, "td.name a")]
            assert "orders" in names and ("secrets" in names) is seen_too
            assert ("Only what User:reader may describe is listed" in find(browser, "main").text) is not seen_too
            browser.get(base + "/topics/orders/messages?from=oldest")
            assert len(every(browser, ".message")) == 30
            find(browser, ".foot form button").click()
            wait(browser, lambda: find(browser, "h1").text == "Log in")
