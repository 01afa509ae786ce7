"""Sites of Markdown and AsciiDoc, built before and after a translation by their programs: same structure, code and links."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from site_checks import translate_folder

pytestmark = pytest.mark.slow

CODE = '```js\n# No heading\nconst word = "a *b* [c](d)";\n```\n'
COMMON = f"""
# Getting started & more

A paragraph with *emphasis*, **strong words**, `code words`, a [link](#second-part), an <https://example.org/a_b>
and a last mark. It costs $5 and 10<sup>6</sup> coins; press <kbd>Ctrl</kbd>+<kbd>C</kbd>.

## Second part

1. First item
2. Second item with [another page](OTHER#deep-heading)

   {CODE.replace(chr(10), chr(10) + "   ").rstrip()}

| Name | Value \\| more |
| :--- | ---: |
| `a` | one word |
| [link](#second-part) | two words |

> A quotation
> of two lines.

### Repeated heading

Some text with an image ![alternative text](a.png "A title").

### Repeated heading

{CODE}
"""
OTHER = "\n# Other page\n\n## Deep heading\n\nBack to [the start](INDEX), and [the second one](INDEX#repeated-headingSECOND).\n"
HUGO_TEMPLATE = "<html><head><title>{{ .Title }}</title></head><body>{{ .TableOfContents }}{{ .Content }}</body></html>\n"


class Page(HTMLParser):
    """Shape of a page: its tags with their classes, its ids, its links and its code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.code: list[str] = []
        self._depth = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := attributes.get(name))}
        if tag == "a" and attributes.keys() == {"id"}:
            return  # the old anchor of a heading
        self.links += [value for name in ("href", "src") if (value := attributes.get(name))]
        self.tags.append(f"{tag} {attributes.get('class')}")
        self._depth += tag in ("code", "pre", "kbd")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag in ("code", "pre", "kbd")

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.code.append(data)


@dataclass(frozen=True)
class Site:
    """Site for a program: texts of the files by their names, and arguments that build the site IN as OUT."""

    files: dict[str, str]
    command: Sequence[str]


def make_common(index: str, other: str, *, second: str = "-1") -> tuple[str, str]:
    """Return the two pages of a site, with the addresses that links give them."""
    return COMMON.replace("OTHER", other), OTHER.replace("INDEX", index).replace("SECOND", second)


def make_hugo() -> Site:
    def refer(match: re.Match[str]) -> str:
        return f']({{{{< ref "{match[1]}.md{match[2]}" >}}}})'

    common, other = (re.sub(r"\]\((common|other)(#[^)]*|)\)", refer, page) for page in make_common("common", "other"))
    extra = """
{{% quoted %}}
A text *in* a shortcode.
{{% /quoted %}}

Term
: A definition with a note.[^1]

[^1]: The *note*.
"""
    files = {
        "hugo.toml": 'baseURL = "https://example.org/"\ndisableKinds = ["RSS", "sitemap"]\n',
        "layouts/_default/single.html": HUGO_TEMPLATE,
        "layouts/_default/list.html": HUGO_TEMPLATE,
        "layouts/shortcodes/quoted.html": "<blockquote>{{ .Inner | markdownify }}</blockquote>",
        "content/_index.md": "---\ntitle: Start\n---\n\nWords of the start.\n",
        "content/common.md": f'+++\ntitle = "A title: one"\n+++\n{common}{extra}',
        "content/other.md": f"---\ntitle: 'Other: two'\naliases: [/old/]\n---\n{other}",
    }
    return Site(files, ("hugo", "-s", "IN", "-d", "OUT", "--quiet"))


def make_jekyll() -> Site:
    common, other = make_common("{% link common.md %}", "{% link other.md %}")
    extra = """
## With attributes {#own-id .class}

A paragraph with a class.
{: .note #para}

{% if page.title %}Words under a condition.{% endif %} And {{ page.title | upcase }} words.
"""
    front = "---\nlayout: default\ntitle: {}\npermalink: /{}.html\n---\n"
    files = {
        "_config.yml": "title: Site\nkramdown:\n  input: GFM\n",
        "_layouts/default.html": "<html><head><title>{{ page.title }}</title></head><body>{{ content }}</body></html>\n",
        "common.md": front.format("'Common: one'", "common") + common + extra,
        "other.md": front.format("Other", "other") + other,
        "_posts/2020-01-02-first.md": "---\nlayout: default\ntitle: P\n---\n\n[It]({% link common.md %}#second-part).\n",
    }
    return Site(files, ("jekyll", "build", "-s", "IN", "-d", "OUT", "--quiet", "--future"))


def make_mkdocs() -> Site:
    common, other = make_common("common.md", "other.md", second="_1")
    extra = """
!!! note "A *title* of words"
    Words in a box.

A [button](#second-part){ .md-button } and ++ctrl+alt+del++.
"""
    configuration = "site_name: Site\ntheme:\n  name: mkdocs\nstrict: true\nplugins: []\nmarkdown_extensions:\n"
    extensions = ("admonition", "attr_list", "pymdownx.superfences", "pymdownx.keys")
    files = {
        "mkdocs.yml": configuration + "".join(f"  - {name}\n" for name in extensions),
        "docs/index.md": "---\ntitle: Start\n---\n\n# Start\n\nSee [it](common.md#second-part).\n",
        "docs/common.md": "---\ntitle: Common words\n---\n" + common.replace("& more", "and more") + extra,
        "docs/other.md": other,
    }
    return Site(files, ("mkdocs", "build", "-q", "-f", "IN/mkdocs.yml", "-d", "OUT"))


def make_pandoc() -> Site:
    common, other = make_common("common.html", "other.html")
    extra = """
::: {.warning #box}
Words with [a span]{.small lang=fr} and math $a_1 + \\text{words}$. An inline note.^[Words of *it*.]
:::

(@) A numbered example.

| Words of a line
|   and more words
"""
    files = {"common.md": f"---\ntitle: Common\n---\n{common}{extra}", "other.md": other}
    command = "mkdir OUT; for name in common other; do pandoc -s IN/$name.md -o OUT/$name.html; done"
    return Site(files, ("sh", "-c", command))


BUILDERS = {"hugo": make_hugo, "jekyll": make_jekyll, "mkdocs": make_mkdocs, "pandoc": make_pandoc}


def build(command: Sequence[str], folder: Path, output: Path) -> tuple[str, dict[str, Page]]:
    """Build a site. Return what the program reports, and the pages by their names."""
    arguments = [argument.replace("IN", str(folder)).replace("OUT", str(output)) for argument in command]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=200, check=False)
    messages = (result.stdout + result.stderr).replace(str(folder), "").replace(str(output), "")
    assert result.returncode == 0, messages
    pages = {str(path.relative_to(output)): path for path in sorted(output.rglob("*.html"))}
    return messages, {name: Page(path.read_text(encoding="utf-8")) for name, path in pages.items()}


def list_dead_links(pages: dict[str, Page]) -> list[str]:
    """Return the links within a site that lead nowhere."""
    dead = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link.replace("https://example.org/", "/") if "example.org/a_b" not in link else "")
            if parts.scheme or parts.path.endswith((".css", ".js", ".ico", ".svg", "a.png")):
                continue
            path = os.path.normpath(os.path.join("/" + os.path.dirname(name), parts.path or os.path.basename(name))).lstrip("/")
            target = pages.get(path) or pages.get(os.path.normpath(os.path.join(path, "index.html")))
            if target is None or (parts.fragment and unquote(parts.fragment) not in target.ids):
                dead.append(f"{name}: {link}")
    return dead


@pytest.mark.parametrize("program", BUILDERS)
def test_site_is_built_after_translation(program: str, tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    site = BUILDERS[program]()
    for name, text in site.files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text, encoding="utf-8")
    flagged = translate_folder(tmp_path / "in", tmp_path / "translated")
    messages, pages = build(site.command, tmp_path / "in", tmp_path / "old")
    new_messages, new_pages = build(site.command, tmp_path / "translated", tmp_path / "new")
    assert not flagged
    assert new_messages == messages
    assert new_pages.keys() == pages.keys()
    assert list_dead_links(pages) == []
    assert list_dead_links(new_pages) == []
    for name, page in pages.items():
        assert new_pages[name].tags == page.tags, name
        assert new_pages[name].code == page.code, name
