"""Pages of sites and programs that extend Markdown. Their documentation says what is structure."""

from __future__ import annotations

import re
import sys
from types import FrameType

import pytest
from document_checks import check_laws

from dragoman.documents import markdown
from dragoman.documents import markdown_dialects as dialects
from dragoman.documents.document import UnitTranslation, check_written, write_document
from dragoman.documents.heading_anchors import list_anchors

# Pages in which words in capital letters, and no others, are texts.
PAGES = {
    "VitePress, mkdocstrings": """\
<<< @/kept/a.js#part{1}

<template #kept>WORDS</template> IN *EMPHASIS*{: .kept}, $`a`$ MATH

::: kept.module
    options:
      kept: true

TEXT
""",
    "GitHub": """\
> [!WARNING]
> KEEP THE *DOOR* CLOSED.

| KEY \\| NAME | COSTS $5 AND $6 |
| :--- | ------: |
| `a \\| b` | $a_1 + b_2$ |

- [x] FEED THE DOG[^a] NOW

$$
x = \\text{area}
$$

[^a]: NOTE ONE.

    MORE OF IT.
""",
    "Docusaurus": """\
import Tabs from '@theme/Tabs';

export const Mark = ({children}) => (
  <b>

    {children}
  </b>
);

<img
  src={require('./a.png').default}
  alt="A CAT"
/>

{kept && (
  <div>

    kept
  </div>
)}

<div style={{a: {b: {c: {d: 'kept'}}}}}>

<a href={useUrl('/b')}>LINK</a> TO <b>BOLD</b> <span {...c}>WORDS</span>
{kept.map((word) => <li>{word}</li>)} END

</div>

:::tip[THE TITLE]{.red}
MORE TEXT
:::
::::danger TAKE CARE
:::info
NESTED
:::
::::

<Tabs values={[{label: 'Windows', value: {a: 'win'}}]}>
  <TabItem value="win">

OPEN {props.x} IT {1 + 1} NOW

  </TabItem>
  <TabItem label={<b>Mac</b>}>CLOSE IT</TabItem>
</Tabs>

{/* a comment */}
""",
    "MkDocs": """\
[TOC]

!!! note

    TEXT

    - ITEM

        !!! warning inline end "THE TITLE"
            NESTED

???+ "OPEN"
    TEXT

{--OLD *WORDS*--} {++NEW++}{>>a comment<<} {~~red~>GREEN~~} {==MARKED==}

=== "TAB"

    ``` c
    int main(void);
    ```

APPLE
:   A FRUIT.

    MORE OF IT.

*[HTML]: HYPER 1. TEXT

![](a.png){ align=left width=300 } [SUBSCRIBE](#){ .md-button } AND ==MARK IT== ++ctrl+alt++ X~i~ Y^2n^

--8<-- "includes/abbr.md"

/// details | SUMMARY
CONTENT
///
""",
    "Hugo": """\
{{% notice note %}}
TEXT
{{% /notice %}}

{{< highlight go "linenos=table" >}}
package main
{{< /highlight >}}
READ [THE PAGE]({{< ref "next.md" >}}) OR {{< youtube a_b_c >}} {{< highlight go >}}go run{{< /highlight >}}

{{< figure
  src="x.png"
  caption="A CAT"
>}}
""",
    "Jekyll": """\
{:toc}

{% raw %}
USE {{ page.title }} HERE
{% endraw %}

{% if x %}TEXT{% endif %} [LINK](x.html){:target="_blank"}
{: .warning #warn}

![A CAT]({{ site.baseurl }}/a.png "A CAT") AND [![A DOG](/b/{{ c }}/d.png)]({% link e.md %})

{% comment %}
not for readers
{% endcomment %}
""",
    "Pandoc": """\
% TITLE
% kept

# CHAPTER {#sec:one .unnumbered}

AS IN [@doe99, pp. 33-35], IT WORKS.^[AN INLINE NOTE.]

::: {.warning}
[SMALL]{.smallcaps} TEXT
:::

\\newpage

\\begin{tabular}{ll}
word & other \\\\
\\end{tabular}

+---------+-------+
| Fruit   | Price |
+=========+=======+
| Bananas | $1.34 |
+---------+-------+

Table: A CAPTION
OF TWO LINES.

  Right     Left
-------     ------
     12     word

-----------------------
 Words     More
 of it     words
---------  ------------
 one       a row of
           two lines

 two       word
-----------------------

(@kept) EXAMPLE (@kept)

a. ITEM
   OF IT
b. OTHER ITEM

1. FIRST

   i) INNER

A.  UPPER

#. COUNTED

| LINE
| BLOCK
""",
    "Obsidian": """\
SEE [[Other page|THE PAGE]] AND [[Plain page]] ![[image.png|100]] #tag/sub

> [!info]- FOLDED
> > [!todo] NESTED
> > TEXT

%%
hidden
%%

- [-] CANCELLED %%hidden%% ITEM ^abc123

| A | B |
| --- | --- |
| [[Page\\|TEXT]] | WORD |
""",
    "mdBook": """\
{{#include file.rs:2:10}}

<div class="warning">

TEXT {{#playground example.rs}}

</div>
""",
    "MyST": """\
(label-target)=
# GUIDE

````{admonition} THE TITLE
:class: tip

SEE {ref}`label-target`.

```{figure} a.png
:alt: kept

CAPTION
```
````

% a comment
""",
    "DocFX": """\
[!INCLUDE[may](../includes/may.md)]

:::image type="content" source="a.png" alt-text="kept":::

:::row:::
   :::column span="2":::
      TEXT
   :::column-end:::
:::row-end:::

> [!div class="nextstepaction"]
> [LINK](a.md)
""",
}
_CODES = re.compile(r"<[^<>]*>")


def test_structure_of_each_dialect_stays(subtests: pytest.Subtests) -> None:
    for name, page in PAGES.items():
        with subtests.test(name):
            document = markdown.parse(page.encode())
            sources = [_CODES.sub("", unit.source) for unit in document.units]
            assert not [source for source in sources if source.upper() != source and not source.count("{")]
            translations = {
                unit.id: UnitTranslation(re.sub(r"[A-Z]{2,}", lambda match: "ü" + match[0].lower(), unit.source))
                for unit in document.units
            }
            written = write_document(document, translations)
            check_written(document, translations, written, markdown.parse)
            # What differs is that each word in capital letters is in small ones.
            restored = re.sub(r"ü(\w+)", lambda match: match[1].upper(), written.decode())
            assert restored.split() == page.split()


def read_sources(page: str) -> list[str]:
    return [unit.source for unit in markdown.parse(page.encode()).units]


def test_structure_ends_with_its_container(subtests: pytest.Subtests) -> None:
    for page, texts in {
        "> $$\n> A\n\n$$\nb\n$$\n\nC\n": ["$$ A", "C"],
        "> ```{note}\n\n```{note}\nA\n```\n": ["A"],
        "> > ```{note}\n>\n> ```{note}\n> A\n> ```\n": ["A"],
        "> ```{note}\n\n> ```{note}\n> A\n> ```\n": ["A"],
        "{/*\nA\n\n{/*\nb */}\n\nC\n": ["C"],
        "{/* A\n\n*/} B\n\n{/*\nc */}\n\nD\n": ["{/* A", "*/} B", "D"],
        "import {\n\nA\n\nimport b from 'c'\n\nD\n": ["A", "D"],
    }.items():
        with subtests.test(page):
            assert read_sources(page) == texts


def test_each_end_sign_is_searched_once() -> None:
    searches: list[object] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call" and getattr(argument, "__name__", "") == "find" and frame.f_code.co_filename == dialects.__file__:
            searches.append(argument)

    sys.setprofile(note)
    try:
        read_sources("{/*\n" * 50 + "*/} A\n\n" + "{/*\n" * 50)
    finally:
        sys.setprofile(None)
    assert len(searches) == 2


def test_imports_are_told_from_sentences(subtests: pytest.Subtests) -> None:
    for line, is_kept in (
        ("import 'a'", True), ('import A, * as b from "c"', True), ("import  a  from'b'", True),
        ("import {a} from 'b'", True), ("import a for 'b'", False), ("import   a", False), ("imports 'a'", False),
        ("export default a;", True), ("export default rates  fall", False), ("export const a = 1", True),
        ("export default async function a", True), ("export let it be", False),
    ):  # fmt: skip
        with subtests.test(line):
            assert read_sources(f"{line}\n") == ([] if is_kept else [line])


def test_characters_without_a_meaning_get_no_escapes(subtests: pytest.Subtests) -> None:
    for page, texts in (
        ("# A\n", ["17. Mai 2031", "5:21", "[so] (da)", "a * b", "a_b", "C# und F", "50 % > 3 & 4 < 5", "US$ 5 und 6 $"]),
        ("A\n", ["5:21 Uhr", "[so] (da)", "a = b", "17.5", "-5 Grad", "{so}", "!wichtig"]),
        ("|A|\n|-|\n", ["17. Mai", "- 5", "# 3", "> 4"]),
    ):
        document = markdown.parse(page.encode())
        for text in texts:
            with subtests.test(page + text):
                source = text.replace("&", "&amp;").replace("<", "&lt;")
                written = write_document(document, {"0": UnitTranslation(source)}).decode()
                assert written == page.replace("A", text)


def test_text_that_would_be_structure_is_escaped(subtests: pytest.Subtests) -> None:
    document = markdown.parse(b"A\n")
    texts = (
        "17. Mai", "- 5", "# A", "> a", ":::note", "!!! note", "*a*", "[a](b)", "$a$", "{{ a }}", "{.a}", "%% a", "[[a]]",
        "x #a", "| a", ": a", "[a]: b", "~~~", "***", "[^a]", "==a==", "{% a %}", "^[a]", "<b>", "`a`", "a[^1]", "++a++",
        "(a)", "a)", "a.", "iv.", "A)", "#.", "(@a)", "(2)",
    )  # fmt: skip
    for text in texts:
        with subtests.test(text):
            translations = {"0": UnitTranslation(f"{text} b".replace("<", "&lt;"))}
            check_written(document, translations, write_document(document, translations), markdown.parse)


def test_linked_headings_keep_their_anchors() -> None:
    page = "# A b\n\n## C & d\n\n# A b\n\n## E {0}\n\n[one](#a-b), [two](#c--d), [three](#a-b-1) and [four](#e)\n"
    for attributes, expected in (
        ("", '# <a id="a-b"></a>X\n\n## <a id="c--d"></a>X\n\n# <a id="a-b-1"></a>X\n\n## <a id="e"></a>X \n'),
        ("{#e}", "# X {#a-b}\n\n## X {#c--d}\n\n# X {#a-b-1}\n\n## X {#e}\n"),
    ):
        document = markdown.parse(page.replace("{0}", attributes).encode())
        translations = {unit.id: UnitTranslation(f"X{''.join(_CODES.findall(unit.source))}") for unit in document.units[:-1]}
        written = write_document(document, translations)
        assert written.decode().startswith(expected)
        check_written(document, translations, written, markdown.parse)


def test_anchors_are_those_of_the_sites() -> None:
    # github-slugger, markdown.extensions.toc.slugify, and Pandoc's manual, "Extension: auto_identifiers"
    assert list_anchors("Über 3 C++ & Q. A") == ["über-3-c--q-a", "uber-3-c-q-a", "ber-3-c-q.-a"]


def test_notes_behind_a_word_do_not_join_it() -> None:
    """The model reads a space between a word and its note, which the file does not have."""
    page = "THE HOUSE.^[IT WAS BUILT.] A DOOR^[OPEN] ^[SPACED] HERE"
    [unit] = markdown.parse(page.encode()).units
    assert unit.source == "THE HOUSE. <g1>IT WAS BUILT.</g1> A DOOR <g2>OPEN</g2> <g3>SPACED</g3> HERE"
    document = markdown.parse(page.encode())
    translation = UnitTranslation(unit.source.replace("A DOOR", "DOORS"))
    assert write_document(document, {unit.id: translation}).decode() == page.replace("A DOOR", "DOORS")


def test_summary_counts_elements_of_mdx_that_stay() -> None:
    """An element in one line is a text, as is a summary. `p` is the end of a tag, too."""
    text = "<details>\n<summary>More *of it*</summary>\n<p>p</p>\n\nText {x}\n\n</details>\n\n"
    text += "<p>\n  One\n</p>\n\n<pre>\n<p>x</p></pre>\n"
    document = check_laws(markdown.parse_mdx, text.encode())
    assert [unit.source for unit in document.units] == ["More <g1>of it</g1>", "p", "Text <x1/>"]
    assert document.skipped == {"blocks of elements of MDX": 2}


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ('<Card\n  title="Open it"\n  alt={x} label=\'Two &amp; words\' href="/a b"/>', ["Open it", "Two & words"]),
        ('See <Tip title="Be careful">now</Tip> and {{< ref title="The page" alt="x.png" >}}.', ["Be careful", "The page"]),
        ('{{% notice caption="Mind \\"this\\"" %}}\nText.\n{{% /notice %}}', ['Mind "this"']),
        ('[a]({{< ref "b.md" >}} "The \\"page\\"") here', ['The "page"']),
        ('::: {.note title="Be careful"}\nText\n:::', ["Be careful"]),
        ('{% include image.html alt="A cat" src="The cat" %}', ["A cat"]),
        ('`<img alt="code it">`\n\n```\n<img alt="code it">\n```\n\n    <img alt="code it">', []),
        ('The attribute title="x y" is here, and <b :title="x + y">c</b>.', []),
        ('export const a = <Card title="x y"/>\n\n{/* <Card title="x y"/> */}\n\n$$\n<Card title="x y"/>\n$$', []),
    ],
)
def test_attributes_of_components_are_texts(text: str, titles: list[str]) -> None:
    """They are those that readers see, in tags and shortcodes. Code and bound attributes stay."""
    document = check_laws(markdown.parse_mdx, text.encode(), lambda text: text.replace("e", "e\" ' & \\\\ "))
    assert [unit.source for unit in document.units if unit.context] == titles
