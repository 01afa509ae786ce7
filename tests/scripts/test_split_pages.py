"""Long reference pages become a folder with a page for each section."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from make_reference import link_sections, split_page


def test_sections_become_pages_that_old_links_reach(tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    page.write_text(
        "# Commands\n\nAll.\n\n## dragoman read it\n\nRead. See [data](recipe.md#data).\n\n### More\n", encoding="utf-8"
    )
    assert split_page(page) == ["index.md", "read-it.md"]
    index, section = ((tmp_path / "cli" / name).read_text(encoding="utf-8") for name in ("index.md", "read-it.md"))
    assert index == "# Commands\n\nAll.\n\n- [dragoman read it](./read-it.md){ #dragoman-read-it }: Read.\n"
    assert section == "# dragoman read it\n\nRead. See [data](../recipe.md#data).\n\n## More\n"
    link = "[a](../reference/cli.md#read-it), [b](cli.md#other), [c](../cli.md), [d](./cli.md), [e](client.md)"
    assert link_sections(link, tmp_path) == (
        "[a](../reference/cli/read-it.md), [b](cli/index.md), [c](../cli/index.md), [d](./cli.md), [e](client.md)"
    )
