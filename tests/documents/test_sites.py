"""Sites of Markdown and AsciiDoc, built before and after a translation by their programs: same structure, code and links."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """Site for a program.

    files: texts of the files by their names
    command: arguments that build the site IN as OUT
    extra: paths to which links may lead beside the pages
    """

    files: dict[str, str]
    command: Sequence[str]
    extra: Sequence[str] = field(default=("a.png",))


def make_common(index: str, other: str, *, second: str = "-1") -> dict[str, str]:
    """Return the two pages that all sites of Markdown have, with the addresses that links give them."""
    return {
        "common": COMMON.replace("OTHER", other),
        "other": OTHER.replace("INDEX", index).replace("SECOND", second),
    }


def make_hugo() -> Site:
    pages = make_common('{{< ref "common.md" >}}', '{{< ref "other.md" >}}')
    pages = {name: text.replace('" >}}#', "#").replace("#deep-heading)", '#deep-heading" >}})') for name, text in pages.items()}
    pages["other"] = pages["other"].replace("#repeated-heading-1)", '#repeated-heading-1" >}})')
    extra = """
## Own id {#own-id}

{{< figure src="a.png" title="Kept" >}}

{{% quoted %}}
A text *in* a shortcode.
{{% /quoted %}}

{{< highlight go "linenos=table" >}}
package main // words
{{< /highlight >}}

Term
: A definition with a note.[^1]

Emoji :smile: and {{< param "title" >}} words. - [ ] no task

- [ ] a task
- [x] a task that is done

[^1]: The *note*.
"""
    front = '+++\ntitle = "A title: one"\ndate = 2020-01-02\ntags = ["one", "two words"]\n[params]\n  name = "kept"\n+++\n'
    return Site(
        {
            "hugo.toml": 'baseURL = "https://example.org/"\ndisableKinds = ["RSS", "sitemap"]\nenableEmoji = true\n',
            "layouts/_default/single.html": HUGO_TEMPLATE,
            "layouts/_default/list.html": HUGO_TEMPLATE,
            "layouts/shortcodes/quoted.html": "<blockquote>{{ .Inner | markdownify }}</blockquote>",
            "content/_index.md": "---\ntitle: Start\nmenu: main\n---\n\nWords of the start.\n",
            "content/common.md": front + pages["common"] + extra,
            "content/other.md": "---\ntitle: 'Other: two'\naliases: [/old/]\n---\n" + pages["other"],
        },
        ("hugo", "-s", "IN", "-d", "OUT", "--quiet"),
    )


def make_jekyll() -> Site:
    pages = make_common("{% link common.md %}", "{% link other.md %}")
    extra = """
{:toc}

* A list for the contents
{:toc}

## With attributes {#own-id .class}

A paragraph with a class.
{: .note #para}

{% highlight ruby %}
puts "words" # text
{% endhighlight %}

{% raw %}
Words with {{ braces }} in them.
{% endraw %}

{% if page.title %}Words under a condition.{% endif %} And {{ page.title | upcase }} words.

Words with a note.[^1] And a [link](https://example.org){:target="_blank"}.

<div markdown="1">
Words *in* a block.
</div>

Term
: A definition.

*[HTML]: Hyper words

[^1]: The note.
"""
    front = "---\nlayout: default\ntitle: {}\npermalink: /{}.html\ntags:\n  - one\n---\n"
    return Site(
        {
            "_config.yml": "title: Site\nkramdown:\n  input: GFM\n",
            "_layouts/default.html": "<html><head><title>{{ page.title }}</title></head><body>{{ content }}</body></html>\n",
            "index.md": "---\nlayout: default\ntitle: Start\n---\n\n{% for p in site.pages %}{{ p.title }}{% endfor %}\n",
            "common.md": front.format("'Common: one'", "common") + pages["common"] + extra,
            "other.md": front.format("Other", "other") + pages["other"],
            "_posts/2020-01-02-first.md": "---\nlayout: default\ntitle: P\n---\n\n[It]({% link common.md %}#second-part).\n",
        },
        ("jekyll", "build", "-s", "IN", "-d", "OUT", "--quiet", "--future"),
    )


def make_mkdocs() -> Site:
    pages = make_common("common.md", "other.md", second="_1")
    pages["common"] = pages["common"].replace("& more", "and more")
    extra = """
[TOC]

!!! note "A *title* of words"
    Words in a box.

    ```python
    def words(): ...
    ```

??? tip
    Folded words

=== "First tab"

    Words in a tab.

=== "Second tab"

    - item

A [button](#second-part){ .md-button } and ++ctrl+alt+del++ and ==marked words== and H~2~O.

Term

:   A definition.

*[HTML]: Hyper words

Words with a note.[^1]

[^1]: The note.
"""
    configuration = """\
site_name: Site
theme:
  name: mkdocs
strict: true
plugins: []
nav:
  - Start: index.md
  - common.md
  - other.md
markdown_extensions:
  - admonition
  - attr_list
  - def_list
  - footnotes
  - abbr
  - pymdownx.details
  - pymdownx.superfences
  - pymdownx.keys
  - pymdownx.mark
  - pymdownx.tilde
  - pymdownx.tabbed:
      alternate_style: true
"""
    return Site(
        {
            "mkdocs.yml": configuration,
            "docs/index.md": "---\ntitle: Start\ntemplate: main.html\n---\n\n# Start\n\nSee [it](common.md#second-part).\n",
            "docs/common.md": "---\ntitle: Common words\ntags:\n  - one\n---\n" + pages["common"] + extra,
            "docs/other.md": pages["other"],
        },
        ("mkdocs", "build", "-q", "-f", "IN/mkdocs.yml", "-d", "OUT"),
    )


# Docusaurus' own reader of MDX. Each page becomes HTML, in which components are elements, and expressions are code.
DOCUSAURUS_SCRIPT = r"""
const fs = require('fs'), path = require('path');
const { createProcessors } = require('@docusaurus/mdx-loader/lib/processor.js');
const preprocess = require('@docusaurus/mdx-loader/lib/preprocessor.js').default;
const hooks = { onBrokenMarkdownLinks: 'throw', onBrokenMarkdownImages: 'throw' };
const markdownConfig = {
  format: 'mdx', mermaid: false, emoji: true, hooks, anchors: { maintainCase: false },
  mdx1Compat: { comments: true, admonitions: true, headingIds: true }
};
const escape = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const write = (node) => {
  const inner = (node.children || []).map(write).join('');
  if (node.type === 'text') return escape(node.value);
  if (node.type === 'root') return inner;
  if (!node.tagName && !node.name) return `<code>${escape(node.value || '')}</code>`;
  const values = (node.attributes || []).map((item) => [item.name || 'spread', item.value && (item.value.value || item.value)]);
  const attributes = [...Object.entries(node.properties || {}), ...values].map(([name, value]) =>
    ` ${name === 'className' ? 'class' : name}="${escape(String(value ?? '')).replace(/\.mdx?(?=#|$)/, '.html')}"`);
  const name = (node.tagName || node.name).replace(/^[A-Z]/, 'x-$&');
  return `<${name}${attributes.join('')}>${inner}</${name}>`;
};
(async () => {
  const [input, output] = process.argv.slice(1);
  let html = '';
  const keep = () => (tree) => { html = write(tree); };
  const options = {
    markdownConfig, admonitions: true, rehypePlugins: [keep], siteDir: input, staticDirs: [input], removeContentTitle: false
  };
  const { mdxProcessor } = await createProcessors({ options });
  fs.mkdirSync(output);
  for (const name of fs.readdirSync(input).filter((item) => item.endsWith('.mdx'))) {
    const filePath = path.join(input, name);
    const text = fs.readFileSync(filePath, 'utf-8').replace(/^---\n[^]*?\n---\n/, '');
    const content = preprocess({ fileContent: text, filePath, markdownConfig, admonitions: true });
    await mdxProcessor.process({ content, filePath, frontMatter: {}, compilerName: 'client' });
    fs.writeFileSync(path.join(output, name.replace('.mdx', '.html')), html);
  }
})().catch((error) => { console.error(error); process.exit(1); });
"""


def make_docusaurus() -> Site:
    pages = make_common("common.mdx", "other.mdx")
    pages["common"] = pages["common"].replace("<https://example.org/a_b>", "address").replace("(a.png", "(./a.png")
    extra = """
## Own id {#own-id}

:::note

Words *in* a note.

:::

:::tip[A *title* of words]
More words.
:::

:::warning Old title
Nested words
:::

<Tabs groupId="one">
  <TabItem value="win" label="Windows">

Words in a tab: {props.value} and <b>bold words</b> by <Link to="/other">a link</Link>.

  </TabItem>
  <TabItem value="mac">Words in a line</TabItem>
</Tabs>

<details>
  <summary>Words of a summary</summary>

  Folded *words*.

</details>

{/* a comment */}

<!-- another comment -->

export const Mark = ({children}) => (
  <span style={{color: 'red'}}>{children}</span>
);

<Mark>Marked words</Mark> and <Mark>others</Mark>.

<div className="box" style={{width: 3}}>
  <p>Words of JSX</p>
</div>

{[1, 2].map((n) => <li key={n}>Item {n}</li>)}

Words with a note.[^1]

[^1]: The note.
"""
    head = "---\ntitle: 'Common: words'\nsidebar_label: Short\nslug: /common\n---\n\nimport Tabs from '@theme/Tabs';\n"
    return Site(
        {"common.mdx": head + pages["common"] + extra, "other.mdx": pages["other"], "a.png": ""},
        ("node", "-e", DOCUSAURUS_SCRIPT, "IN", "OUT"),
        ("a.png", "/other"),
    )


def make_pandoc() -> Site:
    pages = make_common("common.html", "other.html")
    extra = """
## Own id {#own-id .unnumbered key=value}

::: {.warning #box}
Words *in* a box.
:::

::: note
Words with [a span]{.small lang=fr} and math $a_1 + \\text{words}$ and a note.[^1] An inline note.^[Words of *it*.]
:::

$$
x = \\frac{words}{2}
$$

Term

:   A definition

    with two paragraphs.

| Words of a line
|   and more words

(@) A numbered example.

Words H~2~O and 2^10^ and ~~struck~~ and "quoted" --- words...

  Right     Left
-------     ------
     12     12

Table: Words of a caption.

+---------+-------+
| Words   | Price |
+=========+=======+
| more    | $1.34 |
+---------+-------+

```{.python .numberLines startFrom="3"}
words = 1
```

\\newpage

[^1]: The note

    with two paragraphs.
"""
    return Site(
        {"common.md": "---\ntitle: Common\nauthor: A. B.\n---\n" + pages["common"] + extra, "other.md": pages["other"]},
        (
            "sh",
            "-c",
            'mkdir "$2"; for name in common other; do pandoc -s -f markdown "$1/$name.md" -o "$2/$name.html"; done',
            "sh",
            "IN",
            "OUT",
        ),
    )


BUILDERS = {"hugo": make_hugo, "jekyll": make_jekyll, "mkdocs": make_mkdocs, "node": make_docusaurus, "pandoc": make_pandoc}


def build(command: Sequence[str], folder: Path, output: Path) -> tuple[str, dict[str, Page]]:
    """Build a site. Return what the program reports, and the pages by their names."""
    arguments = [argument.replace("IN", str(folder)).replace("OUT", str(output)) for argument in command]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=200, check=False)
    messages = (result.stdout + result.stderr).replace(str(folder), "").replace(str(output), "")
    assert result.returncode == 0, messages
    pages = {str(path.relative_to(output)): path for path in sorted(output.rglob("*.html"))}
    return messages, {name: Page(path.read_text(encoding="utf-8")) for name, path in pages.items()}


def list_dead_links(pages: dict[str, Page], extra: Sequence[str]) -> list[str]:
    """Return the links within a site that lead nowhere."""
    dead = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link.replace("https://example.org/", "/") if "example.org/a_b" not in link else "")
            if parts.scheme or parts.path.endswith((".css", ".js", ".ico", ".svg", *extra)):
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
    if program == "node":
        find = ["node", "-e", "require.resolve('@docusaurus/mdx-loader')"]
        if subprocess.run(find, capture_output=True, check=False).returncode:
            pytest.skip("@docusaurus/mdx-loader is not installed in a folder of NODE_PATH")
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
    assert list_dead_links(pages, site.extra) == []
    assert list_dead_links(new_pages, site.extra) == []
    for name, page in pages.items():
        assert new_pages[name].tags == page.tags, name
        assert new_pages[name].code == page.code, name
