#!/usr/bin/env python3
"""Counts phrases that make comments and documents hard to read, per 10,000 words.

    tests/scripts/language.py            the figures now, beside those before the first rewrite
    tests/scripts/language.py --list     each hit with its place
    tests/scripts/language.py --commit C the figures of a commit

The phrases are those that CONTRIBUTING.md names: some are forbidden (tests/tests/tidy/words.rs refuses
them), the others are good English in small doses. The figure to look at is their density. It never
fails: a person has to judge a sentence.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
# What `--commit bf6a79e` printed, before the first rewrite.
BEFORE = {"comments": 74.2, "documents": 37.4}

FORBIDDEN = {
    "headless who": r"(?:^|[.;:(]\s*|\b(?:that of|those of|by|for|from|to|than|and|but) )who\b(?!m)",
    "whoever, nobody, somebody": r"\b(?:whoever|nobody|somebody)\b",
    "in vain": r"\bin vain\b",
    "of late": r"\bof late\b",
    "tells of, hears of": r"\b(?:tell|tells|told|telling|hear|hears|heard|hearing) of\b",
    "as good as": r"\bas good as\b",
    "come about": r"\b(?:come|comes|came|coming) about\b",
    "for want of": r"\bfor want of\b",
    "borne": r"\bborne\b",
    "so many, so long": r"\b(?:for )?so (?:many|long)\b(?! (?:as|that))",
}
DOUBTFUL = {
    "is to, are to": r"\b(?:is|are|was|were) to (?:be|have|go|come|wait|take|get|leave|say|do|hear|know)\b",
    # Not a list that goes on: (ECONNRESET, EPIPE, ...).
    "whole sentence in parentheses": r"\([A-Z][^()]{14,}[^().][.]\)",
    "ratio of the time before": r"\b\d[.]\d+ (?:of|times) the (?:time|throughput|messages?|rate)\b",
    "a word of": r"\ba word of\b",
    "mostly": r"^Mostly\b|[.(] ?Mostly\b",
    "what ... is": r"(?:^|[.] )What (?:is|was|has|had|comes|came|goes|went)\b",
    "lately, anew, at hand": r"\b(?:lately|anew|at hand)\b",
    "one that": r"\b[Oo]ne that\b",
}
PHRASES = {**FORBIDDEN, **DOUBTFUL}

# The lab journal is a journal; figures and licences are made by others.
LEFT_OUT = ("docs/bench/", "LICENSE", "tests/scripts/language.py", "tests/tests/tidy/words.rs", "CONTRIBUTING.md")
COMMENT = re.compile(r"^\s*(?://[/!]?|#(?!!|\[|include|define|if|e|undef|pragma)|/\*+|\*+(?=[\s/]|$))\s?(.*)$")


def git(*args):
    return subprocess.run(["git", "-C", TOP, *args], check=True, capture_output=True, text=True).stdout


def sources(commit):
    """(path, text) of each file that counts."""
    if commit:
        names = git("ls-tree", "-r", "--name-only", commit).splitlines()
    else:
        names = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in names:
        if name.startswith(LEFT_OUT) or not name.endswith((".rs", ".md", ".h", ".c", ".sh")):
            continue
        if commit:
            yield name, git("show", f"{commit}:{name}")
        elif (TOP / name).is_file() and not (TOP / name).is_symlink():
            yield name, (TOP / name).read_text()


def prose(name, text):
    """The lines of a file that are prose: (number, text)."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if name.endswith(".md"):
            if line.lstrip().startswith("```"):
                inside = not inside
            elif not inside:
                yield number, line
        elif (match := COMMENT.match(line)) and not (name.endswith(".rs") and line.lstrip().startswith(("#", "*"))):
            yield number, match.group(1)


def count(commit, show):
    words, hits, kinds = Counter(), Counter(), Counter()
    for name, text in sources(commit):
        kind = "documents" if name.endswith(".md") else "comments"
        lines = list(prose(name, text))
        words[kind] += sum(len(line.split()) for _, line in lines)
        for phrase, pattern in PHRASES.items():
            for number, line in lines:
                found = len(re.findall(pattern, line))
                hits[kind] += found
                kinds[phrase] += found
                if found and show:
                    print(f"{name}:{number}: {phrase}: {line.strip()}")
    return words, hits, kinds


def main():
    args = sys.argv[1:]
    commit = args[args.index("--commit") + 1] if "--commit" in args else None
    words, hits, kinds = count(commit, "--list" in args)
    for kind in ("comments", "documents"):
        rate = 10_000 * hits[kind] / max(words[kind], 1)
        before = BEFORE[kind]
        beside = "" if commit else f", before {before}"
        print(f"language: {kind}: {rate:.1f} hits in 10,000 words ({hits[kind]} in {words[kind]}){beside}")
    forbidden = sum(kinds[k] for k in FORBIDDEN)
    print(f"language: of these, {forbidden} are forbidden:", ", ".join(f"{k} {kinds[k]}" for k in FORBIDDEN if kinds[k]) or "none")


main()
