"""Principal mapping rules: Kafka's own examples, and what RE2 does not take."""

import pytest

from millstream.errors import Rejected
from millstream.secure.principals import PrincipalRules

SERVICE = "CN=Alice,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("", SERVICE, SERVICE),
        ("DEFAULT", SERVICE, SERVICE),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", SERVICE, "Alice"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", SERVICE, "alice"),
        ("RULE:^cn=(.*)$/$1/U,RULE:^CN=(.*?),.*$/$1/U,DEFAULT", SERVICE, "ALICE"),
        ("RULE:^cn=(.*)$/$1/ , DEFAULT", SERVICE, SERVICE),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1@kafka/L,DEFAULT", SERVICE, "alice@kafka"),
        (r"RULE:CN=(a\/b),?.*/\$$1\/x/", "CN=a/b", "$a/b/x"),
        (r"RULE:^CN=([^,ABC]+),O=(.*),C=US$/$2,$1/", "CN=x,O=y,C=US", "y,x"),
    ],
)
def test_the_first_rule_that_matches_decides(rules, subject, name):
    assert PrincipalRules(rules).name(subject) == name


@pytest.mark.parametrize("rules", ["RULE:a/b/x", "RULE:a", "nothing", "DEFAULT DEFAULT", "RULE:(/x/", "RULE:a/$1/"])
def test_what_is_no_rule_is_refused(rules):
    with pytest.raises(Rejected):
        PrincipalRules(rules)


def test_look_ahead_is_refused_because_re2_has_none():
    with pytest.raises(Rejected, match="RE2 does not take the pattern"):
        PrincipalRules("RULE:^CN=(?!admin)(.*)$/$1/")


@pytest.mark.parametrize(("rules", "subject"), [("RULE:^CN=x$/$0/", "CN=y"), ("RULE:^CN=(.*)$/$1/", "CN=")])
def test_a_subject_without_a_name_is_refused(rules, subject):
    with pytest.raises(Rejected):
        PrincipalRules(rules).name(subject)


def test_patterns_take_linear_time():
    rules = PrincipalRules("RULE:^(.*)*X$/$1/,DEFAULT")
    assert rules.name("CN=" + "a" * 4000) == "CN=" + "a" * 4000
