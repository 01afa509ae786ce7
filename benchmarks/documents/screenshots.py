"""Pictures of a DOCX and an HTML file beside their translations, as LibreOffice and Chromium show them.

    PYTHONPATH=benchmarks python -m documents.screenshots BUNDLE FOLDER

The files are written into FOLDER and translated there. It needs the programs soffice, pdftoppm and chromium. Code, numbers and
the keys of a keyboard have to stay as they are; the script checks this, too.
"""

from __future__ import annotations

import argparse
import html
import io
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from dragoman.documents.translate_file import translate_file
from dragoman.inference.load import load

KEPT = ("print(x)", "Ctrl", "12", "340")
"""Texts of both files that are not translated."""

HTML = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>A market</title><style>
body { font: 16px/1.4 serif; margin: 24px 36px; color: #222 } h1 { color: #14476e }
blockquote { background: #fff1cc; border-left: 5px solid #b99a5a; margin: 0; padding: 6px 10px }
table { border-collapse: collapse; margin-top: 14px } td, th { border: 1px solid #777; padding: 4px 9px; text-align: left }
</style></head><body>
<h1>Two men at the market</h1>
<p>A man in a <b>blue shirt</b> is standing on a ladder. Two young men are <i>playing football</i> on the
<a href="beach.html">beach</a>.</p>
<ul><li>A woman is sitting on a <b>red bench</b>.</li><li>A brown dog is running through the water.</li>
<li>Three children are playing in the <i>snow</i>.</li></ul>
<blockquote>A little girl is holding <code>print(x)</code> a book. Two boys press <kbd>Ctrl</kbd> on a computer.</blockquote>
<table><tr><th>A street</th><th>People</th></tr><tr><td>A man is riding a bicycle.</td><td>12</td></tr>
<tr><td>People are walking down the <u>street</u>.</td><td>340</td></tr></table>
</body></html>
"""

_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml"
_FONTS = '<w:rFonts w:ascii="{0}" w:hAnsi="{0}"/>'
_STYLES = f"""<w:styles {_W}><w:docDefaults><w:rPrDefault><w:rPr>{_FONTS.format("Liberation Serif")}<w:sz w:val="24"/></w:rPr>
</w:rPrDefault><w:pPrDefault><w:pPr><w:spacing w:after="120"/></w:pPr></w:pPrDefault></w:docDefaults>
<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/></w:style>
<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/><w:rPr><w:b/><w:color w:val="14476E"/>
<w:sz w:val="40"/></w:rPr></w:style>
<w:style w:type="character" w:styleId="HTMLCode"><w:name w:val="HTML Code"/><w:rPr>{_FONTS.format("Liberation Mono")}</w:rPr>
</w:style></w:styles>"""
_NUMBERING = f"""<w:numbering {_W}><w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/>
<w:lvlText w:val="&#8226;"/><w:pPr><w:ind w:left="720" w:hanging="360"/></w:pPr></w:lvl></w:abstractNum>
<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>"""
_RUN = re.compile(r"<(/?)(b|i|u|a|code|kbd)(?:\s[^>]*)?>")
_PROPERTIES = {
    "b": "<w:b/>",
    "i": "<w:i/>",
    "u": '<w:u w:val="single"/>',
    "code": '<w:rStyle w:val="HTMLCode"/>',
    "kbd": _FONTS.format("Liberation Mono"),
}


def make_docx() -> bytes:
    """Return a DOCX file with the texts of the page: headings, lists, links, code and a table."""
    body = ""
    for tag, text in re.findall(r"<(h1|p|li|blockquote|table)>(.*?)</\1>", HTML.replace("\n", " "), re.DOTALL):
        match tag:
            case "h1":
                body += _make_paragraph(text, '<w:pStyle w:val="Heading1"/>')
            case "li":
                body += _make_paragraph(text, '<w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>')
            case "table":
                body += _make_table(text)
            case _:
                body += _make_paragraph(text)
    margins = 'w:top="500" w:bottom="500" w:left="700" w:right="700"'
    page = f'<w:sectPr><w:pgSz w:w="9600" w:h="6300"/><w:pgMar {margins}/></w:sectPr>'
    names = {"word/document.xml": "document.main", "word/styles.xml": "styles", "word/numbering.xml": "numbering"}
    types = "".join(f'<Override PartName="/{name}" ContentType="{_TYPE}.{kind}+xml"/>' for name, kind in names.items())
    rels = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    members = {
        "[Content_Types].xml": f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{rels}{types}</Types>',
        "_rels/.rels": _make_relations(("officeDocument", "word/document.xml")),
        "word/document.xml": f"<w:document {_W} {_R}><w:body>{body}{page}</w:body></w:document>",
        "word/styles.xml": _STYLES,
        "word/numbering.xml": _NUMBERING,
        "word/_rels/document.xml.rels": _make_relations(
            ("styles", "styles.xml"), ("numbering", "numbering.xml"), ("hyperlink", "https://example.org/beach")
        ),
    }
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return output.getvalue()


def _make_relations(*targets: tuple[str, str]) -> str:
    links = ""
    for number, (kind, target) in enumerate(targets, start=1):
        mode = ' TargetMode="External"' if kind == "hyperlink" else ""
        links += f'<Relationship Id="r{number}" Type="{_OFFICE}/{kind}" Target="{target}"{mode}/>'
    return f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{links}</Relationships>'


def _make_paragraph(text: str, properties: str = "") -> str:
    """Return a paragraph with a run for each text between tags."""
    runs, tag, position = "", "", 0
    for match in [*_RUN.finditer(text), None]:
        end = len(text) if match is None else match.start()
        if part := html.escape(html.unescape(text[position:end]), quote=False):
            run_properties = _PROPERTIES.get(tag, _PROPERTIES["u"] if tag == "a" else "")
            run = f'<w:r><w:rPr>{run_properties}</w:rPr><w:t xml:space="preserve">{part}</w:t></w:r>'
            runs += f'<w:hyperlink r:id="r3">{run}</w:hyperlink>' if tag == "a" else run
        if match is not None:
            tag, position = "" if match[1] else match[2], match.end()
    return f"<w:p><w:pPr>{properties}</w:pPr>{runs}</w:p>"


def _make_table(text: str) -> str:
    rows = re.findall(r"<tr>(.*?)</tr>", text)
    widths = (5600, 2400)
    edges = ("top", "left", "bottom", "right", "insideH", "insideV")
    borders = "".join(f'<w:{edge} w:val="single" w:sz="4"/>' for edge in edges)
    grid = "".join(f'<w:gridCol w:w="{width}"/>' for width in widths)
    body = ""
    for row in rows:
        cells = zip(re.findall(r"<t[hd]>(.*?)</t[hd]>", row), widths, strict=True)
        body += "<w:tr>" + "".join(
            f'<w:tc><w:tcPr><w:tcW w:w="{width}" w:type="dxa"/></w:tcPr>{_make_paragraph(cell)}</w:tc>' for cell, width in cells
        )
        body += "</w:tr>"
    properties = f'<w:tblPr><w:tblW w:w="8000" w:type="dxa"/><w:tblBorders>{borders}</w:tblBorders></w:tblPr>'
    return f"<w:tbl>{properties}<w:tblGrid>{grid}</w:tblGrid>{body}</w:tbl>"


def draw_docx(path: Path) -> Path:
    """Return the picture of the first page, drawn by LibreOffice."""
    folder = path.parent
    home = f"-env:UserInstallation={(folder / 'libreoffice').resolve().as_uri()}"
    _run("soffice", home, "--headless", "--convert-to", "pdf", "--outdir", str(folder), str(path))
    picture = path.with_suffix(".docx")
    _run("pdftoppm", "-r", "96", "-f", "1", "-l", "1", "-png", "-singlefile", str(path.with_suffix(".pdf")), str(picture))
    return Path(f"{picture}.png")


def draw_page(path: Path, output: Path, width: int, height: int) -> Path:
    """Return the picture of a page, drawn by Chromium."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}")
    _run("chromium", *flags, f"--screenshot={output.resolve()}", path.resolve().as_uri())
    return output


def join_pictures(pictures: Sequence[Path], output: Path, width: int, height: int) -> None:
    """Write a picture with others side by side."""
    page = output.with_suffix(".join.html")
    images = "".join(f'<img src="{picture.resolve().as_uri()}">' for picture in pictures)
    page.write_text(
        f"<style>body {{ margin: 0; display: flex; gap: 12px; background: gray; overflow: hidden }}</style>{images}",
        encoding="utf-8",
    )
    draw_page(page, output, len(pictures) * (width + 12) - 12, height)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def read_text(path: Path) -> str:
    """Return the text of a page or a document, without tags."""
    content = path.read_bytes()
    if path.suffix == ".docx":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = archive.read("word/document.xml")
    return re.sub(r"<[^<>]*>", "", content.decode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the pictures. The status is 1 if a text that stays was changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "page.html").write_text(HTML, encoding="utf-8")
    (folder / "page.docx").write_bytes(make_docx())
    translator = load(options.bundle, task="translation")
    changed = []
    for name in ("page.html", "page.docx"):
        output = (folder / name).with_stem("translated")
        translate_file(translator, folder / name, output, overwrite=True)
        changed += [f"{name}: {text}" for text in KEPT if read_text(output).count(text) != read_text(folder / name).count(text)]
    pages = [draw_page(folder / f"{name}.html", folder / f"{name}.html.png", 640, 420) for name in ("page", "translated")]
    join_pictures(pages, folder / "translated-html.png", 640, 420)
    documents = [draw_docx(folder / f"{name}.docx") for name in ("page", "translated")]
    join_pictures(documents, folder / "translated-docx.png", 640, 420)
    for text in changed:
        print(f"CHANGED {text}")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
