"""Codes inside the texts of every format with values, with stubs of models that keep, drop, move and double words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import pytest
from document_checks import translate_content

from dragoman.documents.formats import get_parser
from dragoman.documents.translate_document import CODE_FLAGS, DocumentOptions
from dragoman.documents.unit_selection import KeyGlobs
from dragoman.text.code_check import compare_codes
from dragoman.text.inline_codes import read_inline

XLIFF = '<xliff version="1.2"><file><body><trans-unit id="1"><source>{}</source></trans-unit></body></file></xliff>'
STYLES = [
    "%s", "%d", "%1$s", "%-5.2f", "%(name)s", "%%", "%1", "%L1", "%n", "%99", "%v", "%+v", "%q", "%T", "%,d", "%b",
    "%1$tY", "%B", "%Y", "%name%", "%count%", ":name", ":user_id", "@name", "@count", "!name", "%name", "$1",
    "{{PLURAL:$1|day|days}}", "{name}", "{0}", "{0:N2}", "{n:>10}", "{x!r:>10}", "{d,date,long}", "{{name}}",
    "{{{name}}}", "#{name}", "$t(other)", "@:key", "@:other.key", "@.lower:key", "{'@'}", "%{count}", "%<count>d",
    "%#@days@", "%@", "%1$@", "%ld", "%lu", "${x}", "$x", "$(name)", "$INSTDIR", "__name__", "[name]", "[name/ver]",
    "[user_name]", "[[name]]", "[%key:common::x%]", "[X1X]", "###name###", "%1!s!", "%PATH%", "%*d", "%1%", "%dMB",
    "&nbsp;", "&copy;", "&amp;", "&#169;", "&mdash;", "\u00ae", "<br/>", "<br>", "<img>", "<0/>", "<icon/>",
    "https://example.org/a?b=1&c=2", "a@example.org", "/usr/bin", "C:\\temp\\x.txt", "*#06#", "\U0001f600", "`ls`",
    "``x``", "|x|", "[1]_", ":kbd:`Ctrl`", "%arg", "{%x%}", "*|NAME|*", "<%=x%>", "\\u00e9", "[_1]", "[site:name]",
    "@x@", "@(Model.Name)", "</#if>", "[/#if]", "%[1]d", "%~dp0", "%0:s", "%|1$+5|", "@JohnDoe", "#item_1", ":user-name",
    "tel:+123", "mailto:a@example.org", "urn:isbn:123", "localhost:8080", "./a/b.sh", "../x", "//cdn.example.org/a.js",
    "example.org/a", "git@example.org:a/b.git", "&lt;br/&gt;", "B<ls>", "C<$x>", "<Ctrl>", "<A2:C2>", "&debian;",
    "%06<PRId64>", "%d%%", "[%s]", "%s/%s", "%dx%d", "%s:%d", "``:x:`y```",
]  # fmt: skip
STYLES += ["{d, date, long}", "{n, number, ::currency/USD}", "{ $name }", "{ name }", "{{ name | date }}", "{% if x %}"]
STYLES += ["{{- name}}", '$t(other, { "count": {{n}} })', "%(name) s", "{0:dd MMM}", "<code>a b</code>", "<!-- a b -->"]
STYLES += ['[gallery id="1"]', "<color=#ff0000>", "<sprite=1>", "<@!123>", "<#456>", "<:wave:789>", "<!here>", "%[name]s"]
STYLES += [
    "<t:1618953630:R>",
    "$[name]",
    "@lang('a.b')",
    "&brandShortName;",
    "{n}|plural(one=day,other=days)",
    "\\V[1]",
    "\\ref{a:b}",
]
STYLES += ["--help", "--color=auto", "*.txt", "*.tar.gz", "foo()", "a.b()", "f(x)", "max(a, b)", "getName(the value)"]
STYLES += ["-h, --help", "-V --version", "@ref{Node, the words}", "@emph{big}"]
STYLES += ["{if $x}", "::name::", "\\(user.name)", "<!-- a -->"]
STYLES += ["List<T>", "Map<String, Integer>", "std::vector<int>", "x->y", "a[i]", "data[0][1]", 'row["key"]', "Foo::bar()"]
STYLES += ["${HOME}/x/y.txt", "$HOME/x", "$BUILD_DIR/a.txt", "%APPDATA%\\x\\y.txt"]
PAIRS = (
    ("<b>", "</b>"), ("<0>", "</0>"), ("<bold>", "</bold>"), ('<a href="x?a=1&amp;b=%s">', "</a>"), ("**", "**"), ("*", "*"),
    ("[", "](https://example.org)"), (":ref:`", " <label>`"), ("`", " <https://example.org>`_"), ("[b]", "[/b]"),
    ("&lt;b&gt;", "&lt;/b&gt;"), ("{$START_LINK}", "{$CLOSE_LINK}"), ("%{linkStart}", "%{linkEnd}"), ("{{#a}}", "{{/a}}"),
    ("~~", "~~"), ("^[", "](inflect: true)"), ("<color=red>", "</color>"), ("<size=20>", "</size>"),
)  # fmt: skip
LOOK_ALIKES = (
    "100 % sure", "50% discount", "a < b", "x<y and y>z", "<3 you", "a:b and c", "at 10:30",
    "this [sic] word",
    "pay $PRICE/night now", "if a<b=c we stop when d>e",
    "user@host", "5 $ only", "R&D works", "snake_case names", "2 * 3 * 4", "see <your name>", "rock 'n' roll",
    "fish & chips",
    "and/or", "note: see", "{see below}", "e.g. {sic}", "$1 each", "C:\\ drive", "1/2 price",
    "AT&T", "C# code", "note:this", "meet @home", "see :this", "wow !great",
    "my #tag",
    "run __main__ now", "the <none> item", "rock&roll; x", "some [words]", "ASP.NET", "end.Next one", "one//two", "a ~ b",
    "word(s) here", "see[1] and it[2]", "a*b and c", "either--or", "he said --but no", "2 -1 = 1", "Open (the) door",
    "Tools->Options", "no -I am", "x<y>z", "a :: b", "*one* day", "5.*", "f (x)", "Hi<there", "friend(in)", "well--known",
    "a <= b", "x [= y]", "see @ (here)", "(note: this)", "a = b and c", "a serif, or serifs", "me & you == us",
    "the [a = b] box",
)  # fmt: skip
FORMATS: dict[str, Callable[[str], str]] = {
    "a.json": lambda text: json.dumps({"a": text}),
    "a.arb": lambda text: json.dumps({"a": text}),
    "a.yaml": lambda text: f"a: {json.dumps(text, ensure_ascii=False)}\n",
    "a.po": lambda text: f'msgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""\n',
    "a.properties": lambda text: "a=" + text.replace("\\", "\\\\") + "\n",
    "a.strings": lambda text: f'"a" = {json.dumps(text, ensure_ascii=False)};\n',
    "a.md": lambda text: f"---\ntitle: {json.dumps(text, ensure_ascii=False)}\n---\n\n",
    "a.txt": lambda text: text + "\n",
}


def reverse(line: str) -> str:
    return " ".join(reversed(line.split()))


def double(line: str) -> str:
    return " ".join(word for word in line.split() for _ in range(2))


def drop(line: str) -> str:
    return " ".join(line.split()[::2])


MODELS: dict[str, Callable[[str], str]] = {"capitals": str.upper, "moves": reverse, "doubles": double, "drops": drop}


def translate(name: str, content: str, model: Callable[[str], str]) -> tuple[str, list[str]]:
    """Return the translated text of a file with one text, as it is read again, and its flags."""
    result = translate_content(name, content, model)
    after = get_parser(name)(result.content)
    texts = [unit.target or unit.source for unit in (*after.units, *after.other_units)]
    written = result.content.decode().rstrip("\n") if name == "a.txt" else "\n".join(texts)
    # Capital letters are a copy, for the check.
    return written, [flag for unit in result.results for flag in unit.flags if flag != "untranslated"]


# The other formats have the rules of JSON, and an escape of their own that tests of each format hold.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("a.json", "a.txt") else pytest.mark.slow) for name in FORMATS],
)
def test_codes_stay_in_every_format(name: str) -> None:
    """Each code is at the start, in the middle, and at the end. The translation has it once, beside capital letters."""
    losses = []
    for style in STYLES:
        for text in (f"{style} red house", f"the {style} house", f"the house {style}"):
            if name == "a.properties" and "'" in text:
                continue  # MessageFormat reads apostrophes
            written, flags = translate(name, FORMATS[name](text), str.upper)
            rest = written.replace(style, " ", 1)
            expected = " ".join(text.replace(style, " ", 1).upper().split())
            if written.count(style) != text.count(style) or " ".join(rest.split()) != expected or "unwritable" in flags:
                losses.append((style, text, written, flags))
    assert losses == []


@pytest.mark.parametrize("model", [pytest.param(name, marks=[pytest.mark.slow] * (name == "capitals")) for name in MODELS])
def test_no_model_loses_or_doubles_a_code(model: str) -> None:
    losses = []
    for style in STYLES:
        text = f"one {style} two three {style} four"
        written, _ = translate("a.json", FORMATS["a.json"](text), MODELS[model])
        if written.count(style) != 2:
            losses.append((style, written))
    for start, end in PAIRS:
        text = f"one {start}two three{end} four {{name}} five"
        written, _ = translate("a.json", FORMATS["a.json"](text), MODELS[model])
        same = text.count(start), text.count(end), 1
        if (written.count(start), written.count(end), written.count("{name}")) != same or start + end in written:
            losses.append((start, written))
    assert losses == []


def test_codes_joined_to_words_count() -> None:
    """Programs replace them there, too."""
    for text, new in (("%name% !name now", "%name%!name!name"), ("pay $1 in 1950", "$1 $1950"), ("see :name", ":name x:name")):
        source, translation = read_inline(text), read_inline(new)
        assert compare_codes(source, translation).added == (text.split()[1],), text
    same = read_inline("$1 each, $10 and $1 x%name")
    assert compare_codes(same, same).added == ()


def test_pairs_stay_around_their_words() -> None:
    for start, end in PAIRS:
        written, flags = translate("a.yaml", FORMATS["a.yaml"](f"the {start}red house{end} is big"), str.upper)
        assert (written, flags) == (f"THE {start}RED HOUSE{end} IS BIG", []), start


def test_texts_that_look_like_codes_are_translated() -> None:
    for text in LOOK_ALIKES:
        for name in ("a.json", "a.po", "a.txt"):
            assert translate(name, FORMATS[name](text), str.upper) == (text.upper(), []), (name, text)


def test_model_that_adds_codes_leaves_the_source() -> None:
    """Each reading of the model ends in a code that the source does not have, so no translation is written."""
    result = translate_content("a.json", '{"a": "a {name} house"}', lambda line: f"{line} %s")
    assert result.content == b'{"a": "a {name} house"}'
    (unit,) = result.results
    assert (unit.text, unit.flags) == ("", ("printf",))
    assert unit.note == "no translation keeps all placeholders and tags, so the text stays as it is"


def test_translations_without_letters_and_like_markup_are_written() -> None:
    for name, write in FORMATS.items():
        for new in ("5:21", "17. May 2031", "- item", "# head", "true", "a: b", "1", "* x", "> q", "key = 1", "42.", "~"):
            written, flags = translate(name, write("five words in here"), lambda _, new=new: new)  # type: ignore[misc]
            assert (written.split()[-1], [flag for flag in flags if flag == "unwritable"]) == (new.split()[-1], []), (name, new)


def test_texts_without_letters_are_translated() -> None:
    for text, new in (("€405.66", "405,66 €"), ("5:21", "05:21"), ("1,234.56", "1.234,56")):
        for name in FORMATS:
            assert translate(name, FORMATS[name](text), lambda _, new=new: new)[0] == new, name  # type: ignore[misc]
    assert translate("a.json", '{"a": "42", "b": "1.0.0", "c": "2031-05-17"}', lambda _: "x")[0] == "42\n1.0.0\n2031-05-17"


def test_values_for_programs_stay_and_keys_select() -> None:
    values = [
        "https://example.org/May", "/path/to/May", "image.png", "#ff00ff", "MAY_CONST", "btn-primary",
        "2031-05-17T05:21:00Z", "en-US", "true", "getMay", "#/components/x", "text/html", "user_name", "app.title",
        "./x.js", "col-md-6", "10px", "HH:mm", "yyyy-MM-dd", "%B %d, %Y", "MMMM d, yyyy", "rgb(1, 2, 3)",
        "btn btn-primary", "Europe/Berlin", "ctrl+s", "?a=1&b=2", "sha256-abc/def=",
        "0xFF", "1024x768", "aGVsbG8gd29ybGQ=", "12px solid #ccc", "0 auto", "#main > .item", ".a .b", "NODE_ENV=production",
        "image/png, image/jpeg", "translate(10px, 20px)", "cubic-bezier(0.4, 0, 0.2, 1)", "(min-width: 600px)", "src=a dest=b",
        'kind == "y"', "Arial, sans-serif",
    ]  # fmt: skip
    content = json.dumps({f"k{number}": value for number, value in enumerate(values)}, indent=1)
    assert translate_content("a.json", content).content.decode() == content
    text = '{"a": {"x": "one", "y": "sign-up"}, "b": "btn-primary"}'

    def select(take: tuple[str, ...], skip: tuple[str, ...]) -> str:
        options = DocumentOptions("en", "de", keys=KeyGlobs(take, skip))
        return translate_content("a.json", text, options=options).content.decode()

    assert select((), ()) == '{"a": {"x": "ONE", "y": "SIGN-UP"}, "b": "btn-primary"}'
    assert select(("b",), ()) == '{"a": {"x": "one", "y": "sign-up"}, "b": "BTN-PRIMARY"}'
    assert select((), ("*.x",)) == '{"a": {"x": "one", "y": "SIGN-UP"}, "b": "btn-primary"}'


def translate_values(texts: Mapping[str, str], model: Callable[[str], str] = str.upper) -> dict[str, str]:
    """Return the translated values of a JSON file."""
    values: dict[str, str] = json.loads(translate_content("a.json", json.dumps(texts), model).content)
    return values


REFERENCES = (
    "&nbsp;", "&#160;", "&#xA0;", "&ensp;", "&copy;", "&#169;", "&trade;", "&mdash;", "&ndash;", "&hellip;", "&euro;", "&deg;",
    "&times;", "&middot;", "&bull;", "&larr;", "&hearts;", "&#128512;", "&laquo;", "&ldquo;", "&frac12;", "&sect;", "&lrm;",
)  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_references_of_html_are_never_lost(model: str) -> None:
    """A model that keeps letters alone loses none, too, in a text and in an attribute."""
    for change in (MODELS[model], lambda line: " ".join(re.findall(r"[^\W_]+", line)) or "x"):
        losses = []
        for reference in REFERENCES:
            text = f"one {reference} two <b>three</b> {reference} four"
            alt = f"one two {reference} three"
            written, flags = translate("a.html", f"<p>{text}</p><img alt='{alt}'>", change)
            if written.count(reference) != 3 or "  " in written or CODE_FLAGS.intersection(flags):
                losses.append((reference, written, flags))
        assert losses == []


def test_escaped_brackets_are_never_lost() -> None:
    """A text stays with a flag if a model keeps letters alone, and is translated if it keeps all characters."""
    for text in ("one &lt; two", "one &lt;&lt; two &gt;&gt;", "one -&gt; <b>two</b>"):
        written, flags = translate(
            "a.html", f"<p>{text}</p>", lambda line: " ".join(re.findall(r"[^\W_]+", line)).upper() or "x"
        )
        assert (written, "variables" in flags) == (text, True)
        written, flags = translate("a.html", f"<p>{text}</p>", str.upper)
        assert written == text.replace("one", "ONE").replace("two", "TWO")
        assert not CODE_FLAGS.intersection(flags)


def test_references_of_letters_are_letters() -> None:
    seen: list[str] = []

    def remember(line: str) -> str:
        seen.append(line)
        return line.upper()

    for name, text in (("a.html", "<p>{}</p>"), ("a.json", '{{"a": "{}"}}')):
        written, _ = translate(name, text.format("caf&eacute;, don&rsquo;t, don&#39;t"), remember)
        assert written == "CAFÉ, DON’T, DON'T"
        written, _ = translate(name, text.format("Donau&shy;dampf is"), remember)
        assert written.replace("&shy;", "") == "DONAUDAMPF IS"
        assert "&shy;" in written
    assert set(seen) == {"café, don’t, don't", "Donaudampf is"}


def test_other_quotation_marks_are_no_loss() -> None:
    source = "she said &ldquo;go&rdquo; &mdash; now"

    def write_german(line: str) -> str:
        return line.upper().replace("\u201d", "\u201c").replace("\u201cGO", "\u201eGO").replace("\u2014", "\u2013")

    assert translate("a.html", f"<p>{source}</p>", write_german)[0] == "SHE SAID \u201eGO&ldquo; \u2013 NOW"


def test_spaces_without_break_stay_in_every_format() -> None:
    for name, write in FORMATS.items():
        assert translate(name, write("10\u00a0km away"), str.upper)[0] == "10\u00a0KM AWAY"
        assert translate(name, write("Bonjour\u00a0!"), lambda line: line.replace("Bonjour\u00a0", "Hallo"))[0] == "Hallo!"


def test_points_that_the_source_joins_stay_joined() -> None:
    for source, expected in (
        ("<ruby>sky<rp>(</rp><rt>s</rt><rp>)</rp></ruby> is", "<ruby>SKY<rp>(</rp><rt>s</rt><rp>)</rp></ruby> IS"),
        ("one <img src=a><img src=b> two", "ONE <img src=a><img src=b> TWO"),
        ("M<sup>me</sup> Curie", "M<sup>ME</sup> CURIE"),
        ("x<sub>i+1</sub> is", "x<sub>i+1</sub> IS"),
    ):
        assert translate("a.html", f"<p>{source}</p>", str.upper) == (expected, [])
    for source, expected in (("one {name}'s day", "ONE {name}'S DAY"), ("<{a}> is", "<{a}> IS")):
        assert translate("a.json", FORMATS["a.json"](source), str.upper) == (expected, [])


def test_white_space_at_edges_of_elements_is_one_space() -> None:
    """The written text is read again without the spaces that a browser folds, so it is no other text."""
    source = "<p>one <b> two </b> three\n <i>four </i> </p>"
    assert translate("a.html", source, str.upper) == ("ONE <b>TWO</b> THREE <i>FOUR</i>", [])


def test_handle_at_the_start_of_a_text_stays() -> None:
    for text, expected in (("@home", "@home"), ("@home is here", "@home IS HERE"), ("@home: hi", "@home: HI")):
        assert translate("a.json", FORMATS["a.json"](text), str.upper) == (expected, [])


def test_names_behind_signs_need_two_texts() -> None:
    """One text may be a sentence with a typing error. Two texts with the same style have placeholders."""
    for first, second, other in (
        ("hi :who", ":where is it", "a:b"), ("hi @who", "@where is it", "a @ b"), ("hi !who", "!where is it", "so! yes"),
        ("hi [who]", "[where] is it", "so [sic] it is"), ("hi __who__", "__where__ is it", "a __ b"),
    ):  # fmt: skip
        assert translate_values({"a": first, "c": other}) == {"a": first.upper(), "c": other.upper()}
        expected = {"a": first.replace("hi", "HI"), "b": second.replace("is it", "IS IT"), "c": other.upper()}
        assert translate_values({"a": first, "b": second, "c": other}) == expected
    prose = "hi :who\n\n:where is it\n"
    assert translate_content("a.txt", prose).content.decode() == prose.upper()


def test_names_that_a_translation_keeps_are_placeholders() -> None:
    catalog = 'msgid "hi :who"\nmsgstr "hallo :who"\n\nmsgid "see :who"\nmsgstr ""\n'
    assert translate("a.po", catalog, str.upper)[0] == "hallo :who\nSEE :who"


def test_accelerators_inside_words_need_others() -> None:
    texts = {"a": "_File", "b": "E_xit", "c": "_Open it", "d": "snake_case"}
    assert translate_values(texts) == {"a": "_FILE", "b": "E_XIT", "c": "_OPEN IT", "d": "snake_case"}
    assert translate_values({"a": "Sa&ve it"}, lambda line: line.replace("&", "")) == {"a": "Save it"}


def test_messages_with_tags_get_all_plural_forms() -> None:
    """A tag is in each branch that has it, also in those that the target language has and the source lacks."""
    content = XLIFF.format('{VAR, plural, =0 {none} other {<x id="I"/> days <g id="b">here</g>}}')
    for target, forms in (("pl", ("one", "few", "many")), ("ru", ("one", "few", "many")), ("ja", ())):
        result = translate_content("a.xlf", content, options=DocumentOptions("en", target))
        branch = '{<x id="I"/> DAYS <g id="b">HERE</g>}'
        branches = "".join(f" {form} {branch}" for form in (*forms, "other"))
        assert f">{{VAR, plural, =0 {{NONE}}{branches}}}</target>" in result.content.decode(), target
    content = XLIFF.format('You have <x id="A"/> and {n, plural, one {a day} other {days}}')
    result = translate_content("a.xlf", content)
    expected = '{n, plural, one {YOU HAVE <x id="A"/> AND A DAY} other {YOU HAVE <x id="A"/> AND DAYS}}</target>'
    assert expected in result.content.decode()


def test_escaped_tags_are_codes_beside_others() -> None:
    for source, expected in (
        ("a &lt;b&gt;big&lt;/b&gt; day", "A &lt;b&gt;BIG&lt;/b&gt; DAY"),
        ("a &amp;lt;b&amp;gt;big&amp;lt;/b&amp;gt; day", "A &amp;lt;b&amp;gt;BIG&amp;lt;/b&amp;gt; DAY"),
        ("a &amp;nbsp; day", "A &amp;nbsp; DAY"),
        ('<x id="1"/> a &lt;b&gt;big&lt;/b&gt; day', '<x id="1"/> A &lt;b&gt;BIG&lt;/b&gt; DAY'),
        ("one &lt;big day&gt; a &lt; b", "ONE &lt;BIG DAY&gt; A &lt; B"),
    ):
        result = translate_content("a.xlf", XLIFF.format(source))
        assert f">{expected}</target>" in result.content.decode(), source


def test_elements_in_other_languages_stay() -> None:
    for element in (
        '<i lang="fr">bonjour</i>',
        '<i translate="no">a day</i>',
        "<code>a day</code>",
        "<filename>a day</filename>",
    ):
        assert translate_values({"a": f"say {element} here"}) == {"a": f"SAY {element} HERE"}


def test_comments_of_resx_lock_texts_and_words() -> None:
    value = '<data name="{}" xml:space="preserve"><value>{}</value><comment>{}</comment></data>'
    rows = [("a", "one &lt;b&gt;big&lt;/b&gt; day", '{Locked="day"}'), ("b", "a day", "{Locked}"), ("c", "a day", "free")]
    content = f"<root>{''.join(value.format(*row) for row in rows)}</root>"
    assert translate("a.resx", content, str.upper)[0] == "ONE <b>BIG</b> day\na day\nA DAY"


def test_known_layouts_have_language_in_some_values() -> None:
    openapi = {"openapi": "3.0.0", "info": {"title": "a day", "x-group": "two days"}, "paths": {"/a": {"operationId": "a day"}}}
    messages = {"a": {"id": "a day", "defaultMessage": "a day", "description": "a day"}}
    lottie = {"v": "5.5", "layers": [{"nm": "a layer", "t": {"d": {"k": [{"s": {"t": "a day", "f": "a font"}}]}}}]}
    for layout in (openapi, messages, lottie):
        text = json.dumps(layout)
        result = translate_content("a.json", text)
        place = {"openapi": '"title": "a day"', "layers": '"t": "a day"'}.get(next(iter(layout)), '"defaultMessage": "a day"')
        place = '"t": "a day"' if "layers" in layout else place
        assert result.content.decode() == text.replace(place, place.replace("a day", "A DAY"))


def test_messages_with_elements_and_choices_are_translated_by_branch() -> None:
    content = (
        '<xliff version="1.2"><file><body><trans-unit id="1"><source>{VAR, plural, =1 {a day} other {<x id="I"/> days}}'
        "</source></trans-unit></body></file></xliff>"
    )
    written, _ = translate("a.xlf", content, str.upper)
    assert written == "{VAR, plural, =1 {A DAY} other {<x1/> DAYS}}"
    choice = "a={0,choice,0#no day|1#It''s one|1<{0,number,integer} days}\nb=It''s {0}\n"
    result = translate_content("a.properties", choice)
    assert result.content.decode() == "a={0,choice,0#NO DAY|1#IT''S ONE|1<{0,number,integer} DAYS}\nb=IT''S {0}\n"
    same = '{"a":"{n,plural,one{#}other{# %s}}"}'
    assert translate_content("a.json", same).content == same.encode()


def test_accelerators_stand_before_a_letter() -> None:
    for text, new, expected in (
        ("&File", "Datei", "&Datei"), ("E&xit", "Exitus", "E&xitus"), ("Save &As", "Sichern als", "Sichern &als"),
        ("R&D", "F&E", "F&E"),
    ):  # fmt: skip
        content = (
            f"<TS><context><name>A</name><message><source>{text.replace('&', '&amp;')}</source><translation></translation>"
        )
        written, flags = translate("a.ts", content + "</message></context></TS>", lambda _, new=new: new)  # type: ignore[misc]
        assert (written, flags) == (expected, [])


def test_flags_of_a_catalog_declare_the_syntax() -> None:
    entry = '#, {}\nmsgid "100 % days %s"\nmsgstr ""\n'
    assert translate("a.po", entry.format("c-format"), str.upper)[0] == "100 % dAYS %s".replace("% dAYS", "% DAYS")
    assert translate("a.po", '#, no-c-format\nmsgid "100 %d days"\nmsgstr ""\n', str.upper)[0] == "100 %D DAYS"
    for flag, text, expected in (
        ("go-format", "% d days", "% d DAYS"), ("java-format", "it''s {0}", "IT''S {0}"),
        ("lisp-format", "~a a ~5,2f", "~a A ~5,2f"),
        ("gcc-internal-format", "a %<b%> %qs", "A %<B%> %qs"), ("placeholders:Foo:Bar", "a Foo Bar", "A Foo Bar"),
        ("laravel-format", "hi :who", "HI :who"),
    ):  # fmt: skip
        assert translate("a.po", f'#, {flag}\nmsgid "{text}"\nmsgstr ""\n', str.upper)[0] == expected
    assert translate("a.po", '#, fuzzy, read-only\nmsgid "one"\nmsgstr ""\n', str.upper)[0] == "one"
    assert translate("a.po", '#, max-length:2\nmsgid "one"\nmsgstr ""\n', str.upper)[1] == ["max_length"]
    locked = XLIFF.replace("<trans-unit", '<trans-unit weblate-flags="read-only"').format("one")
    assert translate("a.xlf", locked, str.upper)[0] == "one"


def test_quoted_braces_of_messages_stay() -> None:
    for source, expected in (
        ("say '{0}' now {1}", "SAY '{0}' NOW {1}"),
        ("{n, plural, one {'{'a'}' day} other {# days}}", "{n, plural, one {'{'A'}' DAY} other {# DAYS}}"),
    ):
        for name in ("a.properties", "a.json"):
            assert translate(name, FORMATS[name](source), str.upper) == (expected, [])


def test_number_around_a_plural_is_written_by_its_name_inside() -> None:
    inner = "{m, plural, one {# b} other {# c}}"
    source = f"{{n, plural, one {{# a {inner}}} other {{# d {inner}}}}}"
    branches = [f"{{{{m, plural, one {{{{n, number}} {word} # B}} other {{{{n, number}} {word} # C}}}}}}" for word in "AD"]
    expected = f"{{n, plural, one {branches[0]} other {branches[1]}}}"
    assert translate("a.json", FORMATS["a.json"](source), str.upper) == (expected, [])


def test_bar_between_spaces_divides_texts() -> None:
    """A model that drops a bar would drop a form of the plural."""
    for name in ("a.json", "a.properties"):
        assert translate(name, FORMATS[name]("no day | {n} days"), lambda line: line.replace(" |", ",").upper()) == (
            "NO DAY | {n} DAYS",
            [],
        )


def test_repeated_ids_of_xliff_2_are_texts_of_their_own() -> None:
    content = (
        '<xliff version="2.0" srcLang="en" trgLang="de"><file id="f"><unit id="1">'
        '<segment id="s"><source>one</source></segment>'
        '<segment id="s"><source>two <ph id="1"/> <ph id="1"/></source></segment></unit><unit id="1"><segment id="s"><source>'
        '<pc id="1">three</pc> <pc id="1">four</pc></source></segment></unit></file></xliff>'
    )
    result = translate_content("a.xlf", content)
    targets = re.findall("<target>(.*?)</target>", result.content.decode())
    assert targets == ["ONE", 'TWO <ph id="1"/> <ph id="1"/>', '<pc id="1">THREE</pc> <pc id="1">FOUR</pc>']


def test_line_breaks_between_codes_stay() -> None:
    """No text is beside them from which a translation could get them back."""
    strings = '<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2"><string name="a">{}</string></resources>'
    code = '<xliff:g id="x">%d</xliff:g>'
    document = XLIFF.replace('id="1"', 'id="1" xml:space="preserve"')
    cases = [
        ("strings.xml", strings.format(f"Size %1$s\\n{code}\\n{code} files"), f">SIZE %1$s\\n{code}\\n{code} FILES<"),
        ("a.xlf", document.format('Age <x id="a"/>\n<x id="b"/>\tred\nhouse'), '>AGE <x id="a"/>\n<x id="b"/>\tRED\nHOUSE<'),
    ]
    for name, content, expected in cases:
        result = translate_content(name, content)
        assert expected in result.content.decode(), name
        assert [unit.flags for unit in result.results] == [()], name
