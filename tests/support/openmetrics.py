# SPDX-License-Identifier: MIT
"""OpenMetrics text, read strictly.

parse(text) returns {family: Family}; whatever the specification does not allow raises ValueError.
Only what ndbusd has: counters, gauges, histograms and info, without timestamps and exemplars. The
samples of a histogram are its buckets, each with what is in it alone, under the label le; its count
and sum are beside them.
"""

import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?\Z")
BOUND = re.compile(r"(\+Inf|[0-9]+\.[0-9]+(e[+-][0-9]{2,})?|[1-9]e[+-][0-9]{2,})\Z")  # as Go's %g, with a point
SUFFIXES = {"counter": "_total", "gauge": "", "info": "_info", "histogram": ""}


class Family:
    def __init__(self, name):
        self.name = name
        self.type = self.unit = self.help = None
        self.samples = {}  # tuple of sorted (label, value) -> number
        self.buckets = []  # of a histogram: (bound, number of all up to it)
        self.count = self.sum = None


def require(condition, why, line):
    if not condition:
        raise ValueError(f"{why}: {line!r}")


def unescape(text, line):
    out, i = [], 0
    while i < len(text):
        if text[i] == "\\":
            require(text[i + 1:i + 2] in ("\\", '"', "n") and text[i + 1:i + 2], "escape", line)
            out.append({"\\": "\\", '"': '"', "n": "\n"}[text[i + 1]])
            i += 2
        else:
            require(text[i] != '"', "bare quote", line)
            out.append(text[i])
            i += 1
    return "".join(out)


def parse_labels(text, line):
    """Labels at the start of text, which begins behind "{"; what is behind "}"."""
    labels = {}
    while True:
        name, equals, text = text.partition('="')
        require(equals and LABEL.match(name), "label name", line)
        require(name not in labels, "label twice", line)
        end = re.match(r'(?:[^"\\]|\\.)*"', text)
        require(end, "label without end", line)
        labels[name] = unescape(end.group()[:-1], line)
        text = text[end.end():]
        if text.startswith("}"):
            return labels, text[1:]
        require(text.startswith(","), "between labels", line)
        text = text[1:]


def add_to_histogram(family, part, labels, value, line):
    """Buckets in ascending order, each including those below, then how many in all, then their sum."""
    require(family.sum is None, "behind the sum", line)
    if part == "_bucket":
        require(family.count is None, "bucket behind the count", line)
        bound = labels.pop("le", "")
        require(not labels and BOUND.match(bound), "bound", line)
        require(value == int(value), "half of something", line)
        below, n = family.buckets[-1] if family.buckets else (-1, 0)
        require(float(bound) > below and value >= n, "order of buckets", line)
        family.buckets.append((float(bound), value))
        family.samples[("le", bound),] = value - n
        return
    require(not labels, "labels", line)
    if part == "_count":
        require(family.count is None and family.buckets, "count", line)
        require(family.buckets[-1] == (float("inf"), value), "count is not that of +Inf", line)
        family.count = value
    else:
        require(part == "_sum" and family.count is not None, "sample outside its family", line)
        family.sum = value


def parse_sample(family, line):
    require(family is not None, "sample without family", line)
    name = re.match(r"[^ {]*", line).group()
    require(NAME.match(name), "name", line)
    is_histogram = family.type == "histogram"
    require(name == family.name + SUFFIXES[family.type] or
            is_histogram and name.startswith(family.name + "_"), "sample outside its family", line)
    rest, labels = line[len(name):], {}
    if rest.startswith("{"):
        labels, rest = parse_labels(rest[1:], line)
    require(rest.startswith(" ") and NUMBER.match(rest[1:]), "value", line)
    if is_histogram:
        add_to_histogram(family, name[len(family.name):], labels, float(rest[1:]), line)
        return
    key = tuple(sorted(labels.items()))
    require(key not in family.samples, "the same sample twice", line)
    family.samples[key] = float(rest[1:])


def parse(data):
    text = data.decode("utf-8", "strict")
    if not text.endswith("# EOF\n") or "\r" in text or "\0" in text:
        raise ValueError("it does not end in # EOF")
    families, family = {}, None
    for line in text[:-len("# EOF\n")].split("\n")[:-1]:
        if not line.startswith("#"):
            parse_sample(family, line)
            continue
        words = line.split(" ", 3)
        require(len(words) == 4 and words[0] == "#" and NAME.match(words[2]), "metadata", line)
        if family is None or family.name != words[2]:
            require(words[2] not in families, "the family again", line)
            family = families[words[2]] = Family(words[2])
        require(not family.samples, "metadata behind samples", line)
        what = words[1].lower()
        require(what in ("type", "unit", "help"), "kind of metadata", line)
        require(getattr(family, what) is None, "twice", line)
        setattr(family, what, unescape(words[3], line) if what == "help" else words[3])
        require(what != "type" or words[3] in SUFFIXES, "type", line)
        require(what != "unit" or words[2].endswith("_" + words[3]), "unit not in the name", line)
    for name, family in families.items():
        require(family.type and family.help, "no TYPE or no HELP", name)
        require(family.type != "histogram" or family.sum is not None, "no sum", name)
    return families
