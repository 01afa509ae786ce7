// The page: greedy search over encoder.onnx and decoder.onnx by onnxruntime-web, which lies in this folder.
import { SentencePiece } from "./sentencepiece.js";

const RUNTIME = new URL("node_modules/onnxruntime-web/dist/", import.meta.url).href;
const MISSING = "onnxruntime-web is not in this folder. Run there: npm install --prefix . onnxruntime-web";
const element = (id) => document.getElementById(id);

async function fetchFile(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: cannot be read (${response.status}); export the model again`);
  return response;
}

const fetchBytes = async (name) => new Uint8Array(await (await fetchFile(name)).arrayBuffer());

class Translator {
  static async load() {
    const ort = await import(`${RUNTIME}ort.wasm.min.mjs`).catch(() => { throw new Error(MISSING); });
    ort.env.wasm.wasmPaths = RUNTIME;
    ort.env.wasm.numThreads = 1; // more need a server that isolates the page from other origins
    const info = await (await fetchFile("dragoman.json")).json();
    const [source, target] = await Promise.all([info.page.source_model, info.page.target_model].map(fetchBytes));
    const sessions = [];
    for (const name of ["encoder.onnx", "decoder.onnx"]) {
      sessions.push(await ort.InferenceSession.create(await fetchBytes(name), { executionProviders: ["wasm"] }));
    }
    return new Translator(ort, info, new SentencePiece(source), new SentencePiece(target), sessions);
  }

  constructor(ort, info, source, target, [encoder, decoder]) {
    Object.assign(this, { ort, info, source, target, encoder, decoder, tokens: info.text_tokens });
    this.silent = new Set(this.tokens.silent);
    this.ids = new Map();
    this.tokens.source.forEach((piece, id) => this.ids.has(piece) || this.ids.set(piece, id));
  }

  integers(values, shape = [values.length]) {
    return new this.ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
  }

  // Tensors of zeros before the first step.
  start() {
    return Object.fromEntries(this.info.decoder.state.map(({ input, dtype, shape }) => {
      const size = shape.reduce((product, length) => product * length, 1);
      const values = dtype === "int64" ? new BigInt64Array(size) : new Float32Array(size);
      return [input, new this.ort.Tensor(dtype, values, shape)];
    }));
  }

  encode(text) {
    const whole = (this.info.source_prefix || "") + text;
    const pieces = this.source.encode(this.info.lowercase ? whole.toLowerCase() : whole);
    const ids = pieces.map((piece) => this.ids.get(piece) ?? this.tokens.unknown_id);
    const unknown = (index) => ids[index] === this.tokens.unknown_id; // neighbors are one token
    return [...ids.filter((_, index) => !(unknown(index) && unknown(index - 1))), ...this.info.decoder.source_suffix];
  }

  decode(ids) {
    const pieces = ids.map((id) => this.tokens.target[id]).filter((piece) => !this.silent.has(piece));
    return this.target.decode(pieces.map((piece) => this.tokens.texts[piece] ?? piece)).trim();
  }

  async translate(text, show) {
    const { decoder, max_positions } = this.info;
    const ids = this.encode(text), limit = Math.min(ids.length + decoder.max_extra_tokens, max_positions);
    if (ids.length > max_positions) throw new Error(`the line has ${ids.length} tokens, and the model reads ${max_positions}; shorten it`);
    const source = this.integers(ids, [1, ids.length]);
    const cross = await this.encoder.run({ source }), output = [];
    let state = this.start(), token = decoder.start_id;
    while (output.length < limit) {
      const result = await this.decoder.run({ ...state, ...cross, source, tokens: this.integers([token]) });
      state = Object.fromEntries(decoder.state.map((tensor) => [tensor.input, result[tensor.output]]));
      const logits = result.logits.data;
      token = 0;
      for (let id = 1; id < logits.length; id++) if (logits[id] > logits[token]) token = id;
      if (token === decoder.end_id) break;
      output.push(token);
      show(this.decode(output));
    }
    return this.decode(output);
  }
}

function say(message) {
  element("state").textContent = message;
}

// The names of the languages stand in the heading; browsers hyphenate, spell and read aloud by their codes.
function showLanguages({ source_language: source, target_language: target }) {
  if (!source || !target) return;
  const name = (code) => {
    try { return new Intl.DisplayNames(["en"], { type: "language" }).of(code.replace("_", "-")); } catch { return code; }
  };
  element("languages").textContent = document.title = `${name(source)} to ${name(target)}`;
  element("text").lang = source;
  element("output").lang = target;
  element("text").dir = element("output").dir = "auto";
}

async function run(translator) {
  element("run").disabled = true;
  say("Translating …");
  const done = [];
  try {
    for (const line of element("text").value.split(/\r?\n/)) {
      const show = (text) => { element("output").textContent = [...done, text].join("\n"); };
      done.push(line.trim() ? await translator.translate(line, show) : "");
      show("");
    }
    element("output").textContent = done.join("\n");
    say("Done");
  } catch (error) {
    say(error.message);
  }
  element("run").disabled = false;
}

try {
  const translator = await Translator.load();
  showLanguages(translator.info);
  element("form").addEventListener("submit", (event) => { event.preventDefault(); run(translator); });
  element("run").disabled = false;
  say("Ready");
} catch (error) {
  say(error.message);
}
