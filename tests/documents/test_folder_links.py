"""Links between pages of a folder: headings keep the anchors that other pages link to."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_checks import translate_folder

from dragoman.documents.folder_files import list_files

LINKS = {
    "a.md": "[x](b.md#one-two)",
    "d.md": '[x]: guide/b/#one-two\n\n[x]\n\n{{< ref "guide/b.md#one-two" >}}',
    "c.mdx": '<Link to="/docs/b#one-two">red</Link>',
    "e.html": '<p><a href="guide/b.html#one-two">red</a></p>',
    "f.md": "{% link guide/b.md %}#one-two",
    "g.md": "[x](https://example.org/an/address/of/its/own#one-two)\n\n[y](../slug#one-two)",
}


def test_headings_keep_anchors_that_other_pages_link_to(tmp_path: Path, subtests: pytest.Subtests) -> None:
    page = "# One two\n\n# Other\n"
    for name, link in LINKS.items():
        with subtests.test(name):
            folder = tmp_path / name
            (folder / "guide").mkdir(parents=True)
            (folder / name).write_text(f"{link}\n", encoding="utf-8")
            (folder / "guide" / "b.md").write_text(page, encoding="utf-8")
            (folder / "z.md").write_text(page, encoding="utf-8")
            translate_folder(folder, folder / "out")
            kept = '# <a id="one-two"></a>Oüne tüwo\n\n# Oüther\n'
            assert (folder / "out/guide/b.md").read_text(encoding="utf-8") == kept
            # An address of no page of the folder may be that of each page.
            plain = kept if name == "g.md" else "# Oüne tüwo\n\n# Oüther\n"
            assert (folder / "out/z.md").read_text(encoding="utf-8") == plain


def test_names_of_pages_are_found(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (page, link) in enumerate(
        {
            "guide/index.md": "[x](guide/#one)",
            "guide/README.md": "[x](/guide#one)",
            "guide/_index.md": "[x](guide/_index.md#one)",
            "index.md": "[x](../#one)",
            "_posts/2030-01-02-b.md": "[x](/2030/01/02/b.html#one)",
            "docs/02-b.md": "[x](./b#one)",
            "B C.md": "[x](B%20C.md#one)",
        }.items()
    ):
        with subtests.test(page):
            folder = tmp_path / str(number)
            (folder / page).parent.mkdir(parents=True, exist_ok=True)
            (folder / page).write_text("# One\n", encoding="utf-8")
            (folder / "other.md").write_text(link, encoding="utf-8")
            (folder / "third.md").write_text("# One\n", encoding="utf-8")
            translate_folder(folder, folder / "out")
            assert (folder / "out" / page).read_text(encoding="utf-8") == '# <a id="one"></a>Oüne\n'
            assert (folder / "out/third.md").read_text(encoding="utf-8") == "# Oüne\n"


def test_hugo_and_asciidoc_have_their_own_marks(tmp_path: Path) -> None:
    (tmp_path / "in" / "content").mkdir(parents=True)
    (tmp_path / "in" / "hugo.toml").touch()
    for name, text in {
        "a.md": '[x]({{< ref "b.md#one" >}})',
        "b.md": "# One\n",
        "c.adoc": "= Page\n\n== One\n\nText\n",
        "d.adoc": "xref:c.adoc#_one[Red]",
    }.items():
        (tmp_path / "in" / "content" / name).write_text(text, encoding="utf-8")
    translate_folder(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out/content/b.md").read_text(encoding="utf-8") == "# Oüne {#one}\n"
    assert "\n\n[[_one]]\n== Oüne\n" in (tmp_path / "out/content/c.adoc").read_text(encoding="utf-8")


def test_configurations_of_programs_stay(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"description": "one two"}', encoding="utf-8")
    (tmp_path / "texts.json").write_text('{"a": "one two"}', encoding="utf-8")
    files = list_files([tmp_path])
    assert list(files.places) == [tmp_path / "texts.json"]
    assert "configures a program" in files.skipped[tmp_path / "package.json"]
    assert list_files([tmp_path / "package.json"]).places
