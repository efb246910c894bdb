"""A console of several clusters: each has its own pages, credentials and threads, whatever the others do."""

import re
import socket
import threading

import pytest
from werkzeug.test import Client

from millstream.cli.__main__ import main
from millstream.console import serve
from millstream.console.clusters import OPEN_MAX, Clusters
from millstream.console.settings import Settings
from waits import until

pytestmark = pytest.mark.process


@pytest.fixture
def silent():
    """The address of what takes connections and never answers, and those that it has."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take():
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for each in taken:
        each.close()


@pytest.fixture
def several(broker, silent):
    console = Clusters([Settings(broker.bootstrap, name="prod"), Settings(silent, name="dead")])
    yield console
    console.close()


def test_each_cluster_has_its_pages_and_a_switch_that_stays_on_a_list(broker, several):
    topic = broker.new_topic(partitions=1)
    browser = Client(several)
    assert browser.get("/").headers["Location"] == "/prod/"
    assert browser.get("/prod").headers["Location"] == "/prod/"
    page = browser.get(f"/prod/topics?q={topic}").text
    assert f'href="/prod/topics/{topic}/messages"' in page
    assert re.search(r'<a href="/dead/topics" data-whole[^>]*>dead</a>', page)
    one = browser.get(f"/prod/topics/{topic}").text
    assert re.search(r'<a href="/dead/" data-whole[^>]*>dead</a>', one), "the other cluster has no such topic"
    assert 'href="/topics' not in page and "/prod/static/console.css" in page


def test_cookies_of_a_cluster_stay_there_and_colours_are_for_all(several):
    browser = Client(several)
    token = re.search(r'name="token" value="([^"]+)"', browser.get("/prod/").text)[1]
    cookie = browser.get_cookie("millstream-console", path="/prod")
    assert cookie is not None and browser.get_cookie("millstream-console", path="/dead") is None
    chosen = browser.post("/prod/theme", data={"token": token, "theme": "dark"}, headers={"Origin": "http://localhost"})
    assert chosen.status_code == 303
    assert browser.get_cookie("theme", path="/").value == "dark"


def test_a_cluster_that_does_not_answer_slows_no_other(several):
    until(lambda: prod_is_served_beside_dead(several), "all requests about dead are over before prod answers")


def prod_is_served_beside_dead(several):
    """Whether no request about the silent cluster was over when the other's was, as a very slow machine has it."""
    answers = []
    asking = [threading.Thread(target=lambda: answers.append(Client(several).get("/dead/"))) for _ in range(OPEN_MAX)]
    for thread in asking:
        thread.start()

    def icon():
        with Client(several).get("/dead/static/icon.svg") as answer:
            return answer.status_code, answer.text

    refused = until(lambda: (shown := icon())[0] == 503 and shown[1], "all wait")
    assert "requests about dead are open" in refused
    assert Client(several).get("/prod/topics").status_code == 200
    served_beside = not answers
    for thread in asking:
        thread.join()
    assert {answer.status_code for answer in answers} == {503}
    assert all("The cluster does not answer" in answer.text for answer in answers)
    for answer in answers:
        answer.close()
    assert icon()[0] == 200, "the places are free again"
    return served_beside


def test_a_name_that_is_not_known_is_said_with_those_that_are(several):
    answer = Client(several).get("/<script>/topics")
    assert answer.status_code == 404
    assert "&lt;script&gt;" in answer.text and "<script>" not in answer.text
    assert '<a href="/prod/">prod</a>' in answer.text
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    sent_on = Client(several).get("http://localhost//elsewhere.example")
    assert sent_on.status_code == 404


def test_what_is_given_for_a_cluster_is_for_that_one_alone(tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr(serve, "serve", lambda clusters, listener, ready: served.extend(clusters))
    file = tmp_path / "prod.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=ops\nsasl.password=ops-word-1\n"
        "schema.registry.url=http://127.0.0.1:8081\n"
    )
    arguments = ["--bootstrap", "prod=b1:9093,b2:9093", "--bootstrap", "dev=b3", "--listen", "127.0.0.1:0"]
    given = ["--config", f"prod={file}", "--login", "dev=SCRAM-SHA-256", "--registry", "dev=http://127.0.0.1:8082"]
    assert main(["console", *arguments, *given]) == 0
    prod, dev = served
    assert (prod.name, prod.bootstrap, prod.registry, prod.login) == (
        "prod",
        "b1:9093,b2:9093",
        "http://127.0.0.1:8081",
        None,
    )
    assert (dev.name, dev.bootstrap, dev.registry, dev.login) == (
        "dev",
        "b3:9092",
        "http://127.0.0.1:8082",
        "SCRAM-SHA-256",
    )
    assert prod.security.login.username == "ops"
    assert dev.security == type(dev.security)()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bootstrap", "a=x:1", "--bootstrap", "y:1"], "each needs a name"),
        (["--bootstrap", "x:1", "--bootstrap", "y:1"], "a value without a name is given twice"),
        (["--bootstrap", "a=x:1", "--bootstrap", "a=y:1"], "a is given twice"),
        (["--bootstrap", "a=x:1", "--config", "b=/none"], "there is no cluster 'b'; --bootstrap has a"),
        (["--bootstrap", "a=x:1", "--registry", "http://y"], "name the cluster that it is for"),
        (["--bootstrap", "a=x:1", "--login", "a=KERBEROS"], "is not one of"),
        (["--bootstrap", "a=x:1", "-X", "security.protocol=SSL"], "use --config NAME=FILE"),
        (["--bootstrap", "a=x:1", "--bootstrap", "b=y:1", "--registry", "b=ftp://x"], "is no URL"),
    ],
)
def test_clusters_that_cannot_be_told_apart_are_refused_in_one_sentence(arguments, said, capsys):
    assert main(["console", "--listen", "127.0.0.1:0", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.count("\n") == 1
