"use strict";
// The page: it sends the text while you type, shows each sentence as it is finished, and links words by attention.

const WAIT_MILLISECONDS = 400;
const LINE_BREAK = /\r\n|[\n\r\v\f\u0085\u2028\u2029]/;
const WARNINGS = {
  truncated: "The translation may be cut.", repetition: "The translation repeated itself.", copied: "The text was copied.",
  short: "The translation may be too short.", too_long: "The sentence is too long for the model.", empty: "The translation is empty.",
  target_language: "The text is in the target language already.", other_script: "The text is in another script than its language.",
  numbers: "A number is missing.", urls: "A web address is missing.", emails: "An e-mail address is missing.",
  length: "The length is unusual.", untranslated: "The text was copied.", script: "The translation is in another script.",
  low_score: "The model was not sure.", variables: "A placeholder differs.", printf: "A placeholder differs.", xmltags: "A tag differs.",
  newlines: "A line break differs.", max_length: "The translation is longer than the file allows.",
  line_length: "The subtitle has too many or too long lines.", reading_speed: "The subtitle is too fast to read.",
  unwritable: "The format cannot hold the text.", endpunc: "The end of the sentence may be missing.", terminology: "A term of the glossary is missing.",
};
const element = (id) => document.getElementById(id);
const text = element("text"), output = element("output"), source = element("source"), target = element("target"), state = element("state");
let targets = {}, names = {}, models = [], limit = Infinity, controller = null, timer = 0, segments = [], translated = "", requestNumber = 0;
let lastTranslation = Promise.resolve();

function say(message, isError) {
  state.textContent = message;
  state.classList.toggle("error", Boolean(isError));
}

function warn(name) {
  return name in WARNINGS ? words(WARNINGS[name]) : name;
}

function fill(select, codes, first) {
  const chosen = select.value;
  select.replaceChildren(...(first ? [new Option(first, "")] : []), ...codes.map((code) => new Option(names[code] || code, code)));
  if ([...select.options].some((option) => option.value === chosen)) select.value = chosen;
}

async function loadLanguages() {
  const [answer, modelAnswer, settings] = await Promise.all(["languages", "v1/models", "frontend/settings"].map((path) => fetch(path)));
  if (!answer.ok) throw new Error(await readError(answer));
  if (modelAnswer.ok) models = (await modelAnswer.json()).models;
  if (settings.ok) limit = (await settings.json()).charLimit;
  for (const language of await answer.json()) {
    targets[language.code] = language.targets;
    names[language.code] = nameLanguage(language.code, language.name);
  }
  if (!Object.keys(targets).length) {
    text.disabled = true;
    throw new Error(words("No model of this server translates texts. The API lists what it does."));
  }
  fill(source, Object.keys(targets).filter((code) => targets[code].length), words("Detect language"));
  fillTargets();
}

function fillTargets() {
  const codes = source.value ? targets[source.value] : [...new Set(Object.values(targets).flat())].sort();
  fill(target, codes);
  showPair();
}

// Show what follows from the two languages.
function showPair() {
  const swap = element("swap");
  swap.disabled = !canSwap();
  element("swap-note").textContent = !swap.disabled ? "" : source.value
    ? words("No model translates {from} to {to}", { from: names[target.value] || target.value, to: names[source.value] })
    : words("To swap, choose the language of the text first");
  showModel();
}

// Show the model of the chosen languages, and its examples while there is no text.
function showModel() {
  const model = models.find(({ pairs }) => pairs.some(([from, to]) => to === target.value && (!source.value || from === source.value)));
  const license = model && model.license ? words("license {name}", { name: model.license }) : "";
  element("model").textContent = model ? [model.name, model.purpose, model.score, license].filter(Boolean).join(" · ") : "";
  element("examples").replaceChildren(...(model ? model.examples : []).map((example) => {
    const item = document.createElement("li"), choice = document.createElement("button");
    choice.type = "button";
    choice.textContent = example;
    choice.addEventListener("click", () => { setText(example); text.focus(); });
    item.append(choice);
    return item;
  }));
  element("models").hidden = !model;
}

function setText(value) {
  text.value = value;
  schedule();
  translateNow();
}

function canSwap() {
  return Boolean(source.value && (targets[target.value] || []).includes(source.value));
}

async function readError(answer) {
  try {
    const content = await answer.json();
    return content.error.message || content.error;
  } catch {
    return words("The server answered {status}.", { status: answer.status });
  }
}

function schedule() {
  clearTimeout(timer);
  timer = setTimeout(translateNow, WAIT_MILLISECONDS);
  element("count").textContent = text.value ? words("{count} of {limit} characters", { count: text.value.length, limit }) : "";
  element("clear").disabled = !text.value;
}

// Begin to translate the text; lastTranslation settles when that is done.
function translateNow() {
  clearTimeout(timer);
  timer = 0;
  lastTranslation = translate();
}

async function translate() {
  if (controller) controller.abort();
  const number = ++requestNumber;
  element("details").hidden = true;
  // What is shown belongs to the text before until the whole new translation has come.
  translated = "";
  element("copy").disabled = true;
  if (!text.value.trim()) {
    show("", []);
    element("detected").textContent = "";
    say("");
    return;
  }
  controller = new AbortController();
  say(words("Translating"));
  state.classList.add("busy");
  const fields = { texts: [text.value], target: target.value, alternatives: 3, alignment: true };
  if (source.value) fields.source = source.value;
  try {
    const answer = await fetch("v1/translate/stream", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields), signal: controller.signal,
    });
    if (!answer.ok) throw new Error(await readError(answer));
    await readEvents(answer.body, number);
  } catch (error) {
    if (error.name === "AbortError") return;
    say(error instanceof TypeError ? words("The server cannot be reached. Your text is still here; try again.") : error.message, true);
  } finally {
    if (number === requestNumber) state.classList.remove("busy");
  }
}

async function readEvents(body, number) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const finished = new Map();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done || number !== requestNumber) return;
    buffer += value;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const [first, second] = block.split("\n");
      const data = JSON.parse(second.slice("data: ".length));
      if (first === "event: sentence") {
        finished.set(data.source, data.text);
        output.textContent = preview(finished);
      } else if (first === "event: text") {
        showTranslation(data);
      } else if (first === "event: error") {
        throw new Error(data.message);
      }
    }
  }
}

// Show the sentences that are finished in the order of the text, and … for those that are not.
function preview(finished) {
  return text.value.split(LINE_BREAK).map((line) => {
    const found = [...finished].map(([key, value]) => [line.indexOf(key), key, value]).filter(([at]) => at >= 0);
    found.sort((a, b) => a[0] - b[0]);
    const rest = found.reduce((left, [, key]) => left.replace(key, ""), line).trim();
    return found.map(([, , value]) => value).join(" ") + (rest ? " …" : "");
  }).join("\n");
}

function showTranslation(data) {
  show(data.text, data.segments);
  const guess = { name: names[data.source] || data.source, percent: Math.round(data.confidence) };
  element("detected").textContent = data.confidence === undefined ? "" : words("{name} ({percent} %)", guess);
  output.dataset.source = data.source;
  const doubtful = data.segments.filter(isDoubtful).length;
  say(doubtful ? words("{count} of {total} sentences may be wrong", { count: doubtful, total: data.segments.length }) : "");
}

function isDoubtful(segment) {
  return segment.status !== "ok" || segment.checks.length > 0;
}

// Put the sentences into the text as buttons; what is between them stays.
function show(wholeText, newSegments) {
  segments = newSegments;
  translated = wholeText;
  const parts = [];
  let position = 0;
  segments.forEach((segment, index) => {
    const at = segment.text ? wholeText.indexOf(segment.text, position) : -1;
    if (at < 0) return;
    parts.push(wholeText.slice(position, at), buildSentence(segment, index));
    position = at + segment.text.length;
  });
  output.replaceChildren(...parts, wholeText.slice(position));
  element("copy").disabled = !wholeText;
}

function buildSentence(segment, index) {
  const button = document.createElement("span");
  button.className = "sentence" + (isDoubtful(segment) ? " doubtful" : "");
  button.setAttribute("role", "button");
  button.setAttribute("aria-pressed", "false");
  button.tabIndex = 0;
  let number = 0;
  for (const word of segment.text.split(/(\s+)/)) {
    if (!word.trim()) {
      button.append(word);
      continue;
    }
    const span = document.createElement("span");
    span.className = "word";
    span.textContent = word;
    span.dataset.word = number++;
    button.append(span);
  }
  button.addEventListener("click", () => select(index, button));
  button.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      select(index, button);
    }
  });
  button.addEventListener("mouseover", (event) => link(segment, event.target.dataset.word));
  button.addEventListener("mouseleave", () => link(null));
  button.addEventListener("focus", () => link(segment));
  return button;
}

// Show the source of a sentence, with the words that a word of the translation attends to.
function link(segment, word) {
  const line = element("details-source");
  if (!segment) {
    if (element("details").dataset.pinned !== "yes") element("details").hidden = true;
    return line.querySelectorAll(".linked").forEach((span) => span.classList.remove("linked"));
  }
  const linked = new Set((segment.alignment || []).filter(([, to]) => String(to) === word).map(([from]) => from));
  line.replaceChildren(...segment.source.split(/(\s+)/).map(wrapWord(linked)));
  element("details").hidden = false;
  if (element("details").dataset.segment !== segment.source) fillDetails(segment);
}

function wrapWord(linked) {
  let number = 0;
  return (part) => {
    if (!part.trim()) return part;
    const span = document.createElement("span");
    span.textContent = part;
    if (linked.has(number++)) span.className = "linked";
    return span;
  };
}

function fillDetails(segment) {
  const details = element("details");
  details.dataset.segment = segment.source;
  const warnings = [segment.status, ...segment.checks].filter((name) => name !== "ok").map(warn);
  element("warnings").textContent = [...new Set(warnings)].join(" ");
  element("alternatives").replaceChildren();
  const query = new URLSearchParams({ text: segment.source, source: output.dataset.source || source.value, target: target.value });
  element("explain").href = `v1/explain?${query}`;
}

function select(index, button) {
  const segment = segments[index];
  const details = element("details");
  output.querySelectorAll(".sentence").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
  details.dataset.pinned = "yes";
  link(segment);
  fillDetails(segment);
  button.scrollIntoView({ block: "nearest" });
  for (const alternative of segment.alternatives || []) {
    const item = document.createElement("li");
    const choice = document.createElement("button");
    choice.type = "button";
    choice.textContent = alternative.text;
    choice.addEventListener("click", () => replaceSentence(index, alternative));
    item.append(choice);
    element("alternatives").append(item);
  }
}

function replaceSentence(index, alternative) {
  if (!translated) return; // A new translation is on its way.
  const before = segments[index];
  const others = [before, ...before.alternatives.filter((other) => other !== alternative)];
  const buttons = [...output.querySelectorAll(".sentence")];
  let position = 0;
  for (let number = 0; number < index; number++) position = translated.indexOf(segments[number].text, position) + segments[number].text.length;
  const at = translated.indexOf(before.text, position);
  const after = { ...before, alignment: [], ...alternative, alternatives: others };
  show(translated.slice(0, at) + alternative.text + translated.slice(at + before.text.length), segments.map((old, number) => (number === index ? after : old)));
  const button = output.querySelectorAll(".sentence")[buttons.length > index ? index : 0];
  if (button) {
    select(index, button);
    button.focus();
  }
}

// The translation becomes the text. One that is still on its way is waited for.
async function swap() {
  if (timer) translateNow();
  await lastTranslation;
  if (!canSwap()) return;
  const [from, to] = [source.value, target.value];
  source.value = to;
  fillTargets();
  target.value = from;
  showPair();
  setText(translated || text.value);
}

text.addEventListener("input", schedule);
source.addEventListener("change", () => { fillTargets(); translateNow(); });
target.addEventListener("change", () => { showPair(); translateNow(); });
element("clear").addEventListener("click", () => { setText(""); text.focus(); });
element("swap").addEventListener("click", swap);
element("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(translated);
  say(words("Copied"));
});
element("languages").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter") translateNow();
  if (event.altKey && event.key.toLowerCase() === "s") swap();
  if (event.key === "Escape") { element("details").dataset.pinned = ""; element("details").hidden = true; }
});
loadLanguages().catch((error) => say(error instanceof TypeError ? words("The server cannot be reached.") : error.message, true));
