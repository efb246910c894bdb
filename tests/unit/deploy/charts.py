"""Renders a Helm chart of few constructs, so that a test needs no Helm.

What it knows of Go's templates: paths (``.Values.image.tag``, ``$.Release.Name``), variables, ``if``, ``if not``,
``if and``, ``if or``, ``else``, ``range`` with up to two variables, ``end``, ``until``, ``int``, ``min``, ``default``,
``toYaml``, ``nindent``, ``fail``, ``.Files.Get`` and ``-`` that trims. Anything else is an error, so that a chart which
is rendered here is rendered by Helm in the same way.
"""

import json
import re
from pathlib import Path

import yaml


class Refused(Exception):
    """The chart says that its values may not be installed."""


REFUSED = "\N{CROSS MARK}"
TAG = re.compile(r"(\s*)\{\{-\s*(.*?)\s*\}\}|\{\{\s*(.*?)\s*\}\}", re.DOTALL)


def render(chart, values=None, release="demo"):
    """The documents of a chart. ``values`` change those of ``values.yaml``."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    base = yaml.safe_load((chart / "values.yaml").read_text())
    root = {
        "Values": merged(base, values or {}),
        "Chart": {"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"], "Path": chart},
        "Release": {"Name": release, "Namespace": "here"},
    }
    documents = []
    for path in sorted(Path(chart, "templates").glob("*.yaml")):
        parts = split(path.read_text())
        text, rest = block(parts, 0, root, {"$": root})
        assert rest == len(parts), f"{path}: an end too many"
        if REFUSED in text:
            raise Refused(text.split(REFUSED)[1].partition("\n")[0])
        documents += [one for one in yaml.safe_load_all(text) if one]
    return documents


def merged(base, changes):
    return base | {
        key: merged(base[key], value) if isinstance(base.get(key), dict) and isinstance(value, dict) else value
        for key, value in changes.items()
    }


def split(text):
    """Plain text and actions, in turn. An action is a tuple."""
    parts, at = [], 0
    for found in TAG.finditer(text):
        parts += [text[at : found.start()], (found[2] if found[2] is not None else found[3],)]
        at = found.end()
    return [*parts, text[at:]]


def block(parts, at, root, variables):
    """Text up to the action that ends the block, and the place of that action."""
    out = []
    while at < len(parts):
        part = parts[at]
        if isinstance(part, str):
            out.append(part)
        elif part[0] in ("end", "else"):
            return "".join(out), at
        elif part[0].startswith("if "):
            holds = condition(part[0][3:], root, variables)
            text, end = block(parts, at + 1, root, variables)
            other = ""
            if parts[end][0] == "else":
                other, end = block(parts, end + 1, root, variables)
            assert parts[end][0] == "end"
            out.append(text if holds else other)
            at = end
        elif part[0].startswith("range "):
            given, _, source = part[0][6:].rpartition(":=")
            names = given.replace(" ", "").split(",") if given else ["."]
            found = value_of(source.strip(), root, variables)
            pairs = numbered(found, len(names))
            end = block(parts, at + 1, root, variables | dict.fromkeys(names, ""))[1]
            for pair in pairs:
                own = dict(zip(names, pair, strict=False))
                out.append(block(parts, at + 1, root, variables | own)[0])
            at = end
        else:
            out.append(str(value_of(part[0], root, variables)))
        at += 1
    return "".join(out), at


def numbered(found, names):
    """What ``range`` goes through, for one name or for two."""
    if isinstance(found, dict):
        return sorted(found.items())
    return list(enumerate(found)) if names == 2 else [(one,) for one in found]


def condition(words, root, variables):
    """Whether the words after ``if`` hold."""
    if words.startswith("and "):
        return all(condition(one, root, variables) for one in words.split()[1:])
    if words.startswith("or "):
        return any(condition(one, root, variables) for one in words.split()[1:])
    return bool(value_of(words.removeprefix("not "), root, variables)) != words.startswith("not ")


def value_of(expression, root, variables):
    """The value of an action without the words that control blocks."""
    first, *pipes = (one.strip() for one in expression.split(" | "))
    value = call(first, root, variables)
    for pipe in pipes:
        verb, argument = pipe.split(maxsplit=1)
        if verb == "default":
            value = value or call(argument, root, variables)
        elif verb == "nindent":
            value = "\n" + "\n".join(int(argument) * " " + line for line in value.splitlines())
        else:
            raise AssertionError(f"{pipe} is not known here")
    return value


def call(expression, root, variables):
    if expression.startswith("(") and expression.endswith(")"):
        return call(expression[1:-1], root, variables)
    verb, _, argument = expression.partition(" ")
    if verb == "fail":
        return f"{REFUSED}{json.loads(argument)}\n"  # blocks that are not chosen are rendered, too
    if verb == "until":
        return list(range(call(argument, root, variables)))
    if verb == "min":
        return min(int(one) if one.isdigit() else int(call(one, root, variables)) for one in argument.split())
    if verb == "int":
        return int(call(argument, root, variables))
    if verb == ".Files.Get":
        return (root["Chart"]["Path"] / json.loads(argument)).read_text()
    if verb == "toYaml":
        return yaml.safe_dump(call(argument, root, variables), sort_keys=True).rstrip("\n")
    assert not argument, f"{expression} is not known here"
    if verb == "." or (verb in variables and verb != "$"):
        return variables[verb]
    assert re.fullmatch(r"\$?(\.\w+)+", verb), f"{verb} is not known here"
    value = root
    for name in verb.removeprefix("$").split(".")[1:]:
        value = value[name]  # a name that values.yaml does not have is an error here
    return value
