"""The console of a broker takes a new password over HTTPS, or from the broker's machine."""

import pytest
from flask import Flask

from millstream.console.right_pages import require_private
from millstream.console.visits import VISIT
from millstream.errors import Rejected

APPLICATION = Flask(__name__)


def asked(scheme, address, **more):
    return APPLICATION.test_request_context(
        base_url=f"{scheme}://broker", environ_base={"REMOTE_ADDR": address, **more}
    )


@pytest.mark.parametrize(("scheme", "address"), [("https", "10.0.0.7"), ("http", "127.0.0.1"), ("http", "::1")])
def test_a_password_on_a_private_way_is_taken(scheme, address):
    with asked(scheme, address, **{VISIT: object()}):
        require_private()


def test_a_password_in_clear_from_another_machine_is_refused():
    with asked("http", "10.0.0.7", **{VISIT: object()}), pytest.raises(Rejected, match="over HTTPS"):
        require_private()


def test_a_console_of_its_own_leaves_that_to_its_address():
    with asked("http", "10.0.0.7"):
        require_private()
