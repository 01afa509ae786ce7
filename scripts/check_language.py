"""Check the rules for names and prose that a program can check.

Run by `make check`:  python scripts/check_language.py [PATH …]

Checked in Python files: banned variable names, private words and British spelling in identifiers, docstrings that are
fragments, long sentences in docstrings, and classes defined twice. Checked in Markdown files: long sentences and private words.
Each finding is printed as `file:line: code: text`. The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON_FOLDERS = ("src", "tests", "benchmarks", "scripts")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "benchmarks")
MAX_WORDS = 30

BANNED_VARIABLES = frozenset(["told", "found", "wanted", "said", "given", "some", "most", "one", "here", "at", "apart"])
PRIVATE_WORDS = frozenset(
    [
        "knob",
        "knobs",
        "trap",
        "traps",
        "gaze",
        "speaker",
        "speakers",
        "wish",
        "wishes",
        "story",
        "stories",
        "departure",
        "departures",
        "fate",
        "fates",
        "keeper",
        "listener",
        "whoever",
        "whatever",
    ]
)
# A docstring that starts with one of these words is a fragment: it has no verb and is no noun phrase for what it describes.
FRAGMENT_STARTS = re.compile(
    r"(what|who|whoever|whatever|where|which|whether|how|when|why|that of|those|of|in|as|after|before|by|at|on|with|within|"
    r"without|from|for|if|only|so|such|the same|likewise|instead|under|over|until|while|because|also|and|but|or)\b",
    re.IGNORECASE,
)
BRITISH = re.compile(
    r"(?:token|normal|initial|linear|optim|summar|organ|quant|serial|local|general|minim|maxim|parallel|synchron|recogn|visual|"
    r"capital|vector|final|random|real|special|util)is(?:e|ed|er|ers|es|ing|ation|ations)\b"
    r"|colour|neighbour|behaviour|centre|labelled|labelling|judgement|licence|favourite|modelling|cancelled|catalogue"
)
SKIPPED_PARTS = frozenset({".venv", ".work", "__pycache__", "site", ".cache"})


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    code: str
    text: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.code}: {self.text}"


def identifier_words(name: str) -> list[str]:
    """Return the lower-case words of a snake_case or CamelCase name."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of prose without code, tables, quotations, headings and list markers."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^( {4,}|\t).*$", "", text, flags=re.MULTILINE) if "\n\n    " in text else text
    text = re.sub(r"^\s*[|#>].*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"<[^>\n]*>", " ", re.sub(r"`[^`\n]*`", "code", text))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s|\n\s*[\w*., ()|=-]{1,60}: ", text):
        if sentence.strip():
            yield " ".join(sentence.split())


def check_prose(path: Path, line: int, text: str) -> Iterator[Finding]:
    """Yield the long sentences and the private words of a text."""
    for sentence in sentences(text):
        count = len(sentence.split())
        if count > MAX_WORDS:
            yield Finding(path, line, "long-sentence", f"{count} words: {sentence[:80]}…")
        for word in re.findall(r"[a-z]+", sentence.lower()):
            if word in PRIVATE_WORDS:
                yield Finding(path, line, "private-word", f"{word}: {sentence[:80]}")


def bound_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a node binds, with its line: variables, parameters, functions, classes and attributes."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    elif isinstance(node, ast.arg):
        yield node.arg, node.lineno
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr, node.lineno
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        name = node.name
        if name is not None:
            yield name, node.lineno


def check_python(path: Path, text: str) -> Iterator[Finding]:
    """Yield the findings of one Python file."""
    for node in ast.walk(ast.parse(text)):
        for name, line in bound_names(node):
            if name in BANNED_VARIABLES:
                yield Finding(path, line, "banned-name", f"{name}: use the noun of what it holds")
            for word in identifier_words(name):
                if word in PRIVATE_WORDS:
                    yield Finding(path, line, "private-word", name)
                if BRITISH.fullmatch(word):
                    yield Finding(path, line, "british-spelling", name)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if not docstring:
                continue
            line = node.body[0].lineno
            if FRAGMENT_STARTS.match(docstring):
                yield Finding(path, line, "fragment", docstring.splitlines()[0][:80])
            yield from check_prose(path, line, docstring)


def repeated_classes(classes: dict[str, list[tuple[Path, int]]]) -> Iterator[Finding]:
    """Yield each class whose name another file defines as well."""
    for name, definitions in classes.items():
        if len(definitions) > 1:
            for path, line in definitions[1:]:
                yield Finding(path, line, "repeated-class", f"{name} is also defined in {definitions[0][0].name}")


def files_under(paths: list[Path], suffix: str) -> Iterator[Path]:
    """Yield the files with this suffix that the paths name or hold, in order."""
    for path in paths:
        candidates = [path] if path.is_file() else sorted(path.rglob(f"*{suffix}"))
        for candidate in candidates:
            if candidate.suffix == suffix and not SKIPPED_PARTS & set(candidate.parts):
                yield candidate


def check(paths: list[Path]) -> list[Finding]:
    """Return all findings of the Python and Markdown files under the paths."""
    findings: list[Finding] = []
    classes: dict[str, list[tuple[Path, int]]] = {}
    for path in files_under(paths, ".py"):
        text = path.read_text(encoding="utf-8")
        findings.extend(check_python(path, text))
        if "tests" not in path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else True:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append((path, node.lineno))
    for path in files_under(paths, ".md"):
        findings.extend(check_prose(path, 1, path.read_text(encoding="utf-8")))
    findings.extend(repeated_classes(classes))
    return findings


def main(arguments: list[str]) -> int:
    """Check the given paths, or the whole repository, and print the findings; return the exit status."""
    names = arguments or dict.fromkeys((*PYTHON_FOLDERS, *DOCUMENTS))
    paths = [path for name in names if (path := (Path.cwd() if arguments else ROOT) / name).exists()]
    findings = sorted(set(map(str, check(paths))))
    print("\n".join(findings) if findings else "names and prose: no findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
