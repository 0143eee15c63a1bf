#!/usr/bin/env python3
"""Makes the source tree of the book, for mdBook.

    docs/book/assemble.py OUT [BINS]    OUT: is replaced; BINS: where the programs are

With BINS, the page of each tool gets the options that its --help prints.

The chapters stay where they are in the repository: in docs/book/src, in spec-notes, beside the
examples. Their links lead from file to file there. This program copies each chapter that SUMMARY.md
names and rewrites its links:

- A link to a chapter leads to the chapter in the book.
- A link to a picture leads to a copy of it.
- A link to another file of the repository leads to its page on GitHub.
- A link to a file or a heading that does not exist is an error.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BOOK = "docs/book/src/"
GITHUB = "https://github.com/exs-project/exs/blob/main/"
INLINE = re.compile(r"(\]\()([^)\s]+)(\))")
DEFINED = re.compile(r"^(\[[^\]]+\]: )(\S+)()$", re.M)
PICTURES = (".svg", ".png")


def place(path):
    """Where a file of the repository is in the book. mdBook does not follow links to a README."""
    return re.sub(r"\bREADME\.md$", "index.md", path.removeprefix(BOOK))


def slug(heading):
    """The anchor that mdBook and GitHub make of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def options_of(program):
    """What --help says of a program and of its subcommands."""

    def help_of(*words):
        run = subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True)
        return run.stdout.rstrip()

    first = help_of()
    parts = [("Options", first)]
    commands = re.search(r"^Commands:\n((?:  .*\n|\n)+)", first + "\n", re.M)
    for line in commands.group(1).splitlines() if commands else []:
        if (name := re.match(r"  (\w[\w-]*)\s", line)) and name.group(1) != "help":
            parts.append((f"Options of {name.group(1)}", help_of(name.group(1))))
    return "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in parts)


class Book:
    def __init__(self, out, bins):
        self.out = out
        self.bins = bins
        self.problems = []
        self.pictures = set()
        summary = (TOP / BOOK / "SUMMARY.md").read_text()
        targets = [m.group(2) for m in INLINE.finditer(summary)]
        self.chapters = {os.path.normpath(BOOK + t) for t in targets}
        self.anchors = {}

    def anchors_of(self, path):
        if path not in self.anchors:
            text = without_code((TOP / path).read_text())
            self.anchors[path] = {slug(h) for h in re.findall(r"^#+ (.*)$", text, re.M)}
        return self.anchors[path]

    def link(self, source, target):
        """What the link `target` of the file `source` is in the book."""
        if re.match(r"[a-z]+:", target):
            return target
        file, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(source), file)) if file else source
        if not (TOP / path).exists():
            self.problems.append(f"{source}: no such file: {target}")
            return target
        if anchor and path.endswith(".md") and anchor not in self.anchors_of(path):
            self.problems.append(f"{source}: no such heading: {target}")
        tail = f"#{anchor}" if anchor else ""
        if path.endswith(PICTURES):
            self.pictures.add(path)
        elif path not in self.chapters:
            return GITHUB + path + tail
        if not file:
            return tail
        return os.path.relpath(place(path), os.path.dirname(place(source)) or ".") + tail

    def chapter(self, path):
        def rewritten(match):
            return match.group(1) + self.link(path, match.group(2)) + match.group(3)

        text = (TOP / path).read_text()
        # Every other part is inside of a block of code, and stays as it is.
        parts = re.split(r"(^```.*?^```)", text, flags=re.M | re.S)
        for i in range(0, len(parts), 2):
            parts[i] = DEFINED.sub(rewritten, INLINE.sub(rewritten, parts[i]))
        program = self.bins / Path(path).stem if self.bins and path.startswith(BOOK + "tools/") else None
        if program and program.exists():
            parts.append(options_of(program))
        self.write(place(path), "".join(parts))

    def write(self, name, text):
        file = self.out / "src" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def make(self):
        shutil.rmtree(self.out, ignore_errors=True)
        self.chapter(BOOK + "SUMMARY.md")
        for path in sorted(self.chapters):
            if (TOP / path).exists():
                self.chapter(path)
        for path in sorted(self.pictures):
            file = self.out / "src" / place(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / path, file)
        shutil.copy(TOP / "docs/book/book.toml", self.out / "book.toml")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    book = Book(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else None)
    book.make()
    if book.problems:
        sys.exit("\n".join(f"assemble.py: {p}" for p in book.problems))
    print(f"assemble.py: {len(book.chapters)} chapters in {book.out}", file=sys.stderr)


main()
