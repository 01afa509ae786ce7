"use strict";
/* Interaction of the attention page. It reads the weights from the pixels of the images. Without it the drawings are static. */
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLORS = 8, OPACITIES = 8, SHADES = 16, LEVELS = 255, MIN_VISIBLE = 0.04;
  const data = JSON.parse(document.getElementById("data").textContent);
  const kinds = data.kinds;
  const state = { kind: "cross", pinned: null };
  const pixels = {};
  for (const kind of Object.values(kinds)) {
    kind.heads = new Set(kind.heads);
  }

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function mark(name, attributes = {}) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  const percent = (weight) => weight.toFixed(3);
  const chosenHeads = (kind) => [...kinds[kind].heads].sort((a, b) => a - b);
  const colorClass = (head) => "t" + (head % COLORS);

  /* Weights: the rows of a PNG. Each row begins with a byte for "no filter". */

  function bytesOf(text) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
    return bytes;
  }

  async function unpack(kind) {
    if (pixels[kind]) return;
    const png = bytesOf(document.querySelector(`.grid[data-kind=${kind}] img`).src.split(",")[1]);
    const view = new DataView(png.buffer);
    const parts = [];
    for (let place = 8; place < png.length; place += view.getUint32(place) + 12) {
      if (String.fromCharCode(...png.subarray(place + 4, place + 8)) === "IDAT") {
        parts.push(png.subarray(place + 8, place + 8 + view.getUint32(place)));
      }
    }
    const stream = new Blob(parts).stream().pipeThrough(new DecompressionStream("deflate"));
    pixels[kind] = new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function weight(kind, layer, head, row, column) {
    const { shape: [, heads, rows, columns], gap } = kinds[kind];
    const width = heads * (columns + gap) - gap + 1;
    return pixels[kind][(layer * (rows + gap) + row) * width + 1 + head * (columns + gap) + column] / LEVELS;
  }

  /* Controls. */

  function choices(legend, type, name, labels, checked, act, dressed = () => "") {
    const set = element("fieldset", {}, element("legend", {}, legend));
    labels.forEach(([value, text], place) => {
      const input = element("input", { type, name, value });
      input.checked = checked(value, place);
      input.addEventListener("change", () => act(value, input.checked));
      set.append(element("label", { class: dressed(place) }, input, text));
    });
    return set;
  }

  function buildControls() {
    const focused = document.activeElement && document.activeElement.closest("#controls") && document.activeElement;
    const [name, value] = focused ? [focused.name, focused.value] : [];
    const kind = kinds[state.kind];
    const [layers, heads] = kind.shape;
    const numbers = (count) => Array.from({ length: count }, (_, place) => [String(place), String(place + 1)]);
    const box = document.getElementById("controls");
    const short = { cross: "decoder → encoder", encoder: "encoder", decoder: "decoder" };
    const all = element("button", { type: "button", name: "all", value: "all" }, kind.heads.size === heads ? "none" : "all");
    all.addEventListener("click", () => {
      kind.heads = new Set(kind.heads.size === heads ? [] : Array(heads).keys());
      changed();
    });
    const headSet = choices(
      "heads", "checkbox", "head", numbers(heads), (value) => kind.heads.has(Number(value)),
      (value, on) => { on ? kind.heads.add(Number(value)) : kind.heads.delete(Number(value)); changed(); },
      (place) => "head " + colorClass(place),
    );
    headSet.append(all);
    box.replaceChildren(
      choices("attention", "radio", "kind", Object.entries(short).filter(([name]) => name in kinds), (value) => value === state.kind, (value) => show(value)),
      choices("layer", "radio", "layer", numbers(layers), (value) => Number(value) === kind.layer,
        (value) => { kind.layer = Number(value); changed(); }),
      headSet,
    );
    if (name) {
      const again = box.querySelector(`[name=${name}][value="${value}"]`);
      if (again) again.focus();
    }
  }

  async function show(kind) {
    await unpack(kind);
    state.kind = kind;
    state.pinned = null;
    for (const figure of document.querySelectorAll("figure[data-kind]")) figure.hidden = figure.dataset.kind !== kind;
    prepareTokens(kind);
    prepareGrid(kind);
    changed();
  }

  function changed() {
    buildControls();
    drawLines();
    highlight(state.pinned);
    pressGrid();
    drawWords();
    drawPair();
  }

  function describeSelection(kind) {
    const { layer, heads, shape } = kinds[kind];
    const named = chosenHeads(kind).map((head) => head + 1).join(", ");
    const several = heads.size === shape[1] ? "all heads" : heads.size ? `head${heads.size > 1 ? "s" : ""} ${named}` : "no head";
    return `layer ${layer + 1}, ${several}`;
  }

  /* Lines. */

  const places = {};

  function prepareTokens(kind) {
    if (places[kind]) return;
    const svg = document.querySelector(`#lines figure[data-kind=${kind}] svg`);
    const sides = { q: [...svg.querySelectorAll(".q")], k: [...svg.querySelectorAll(".k")] };
    const left = Number(sides.q[0].getAttribute("x")), right = Number(sides.k[0].getAttribute("x"));
    const width = svg.viewBox.baseVal.width;
    const middle = (texts) => texts.map((text) => Number(text.getAttribute("y")) - 4.5);
    svg.setAttribute("role", "group"); // screen readers do not read the tokens of an image
    const spacing = (ys) => ys.length > 1 ? Math.min(20, ys[1] - ys[0]) : 20;
    const strips = mark("g", { class: "strips" });
    svg.insertBefore(strips, sides.q[0]);
    const remark = svg.querySelectorAll("text.muted")[0];
    const y = { q: middle(sides.q), k: middle(sides.k) };
    places[kind] = { svg, sides, left, right, width, strips, remark, y, high: { q: spacing(y.q), k: spacing(y.k) }, tokens: { q: [], k: [] } };
    for (const side of ["q", "k"]) {
      sides[side].forEach((text, place) => {
        const group = mark("g", { class: "token", role: "button", tabindex: side === "q" && place === 0 ? 0 : -1 });
        group.setAttribute("aria-label", `${side === "q" ? "from" : "to"} ${kinds[kind][side === "q" ? "queryTokens" : "keyTokens"][place]}`);
        const x = side === "q" ? 2 : right - 3;
        const high = places[kind].high[side] * 0.95;
        group.append(mark("rect", { class: "hit", x, y: y[side][place] - high / 2, width: (side === "q" ? left + 4 : width - right) - 2, height: high, rx: 3 }));
        text.replaceWith(group);
        group.append(text);
        group.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && highlight([side, place]));
        group.addEventListener("pointerleave", () => highlight(state.pinned));
        group.addEventListener("focus", () => highlight([side, place]));
        group.addEventListener("blur", () => highlight(state.pinned));
        group.addEventListener("click", () => pin([side, place]));
        group.addEventListener("keydown", (event) => walk(event, kind, side, place));
        places[kind].tokens[side].push(group);
      });
    }
  }

  function pin(spot) {
    state.pinned = state.pinned && state.pinned.join() === spot.join() ? null : spot;
    if (state.pinned) {
      kinds[state.kind].pair[spot[0] === "q" ? 0 : 1] = spot[1];
      drawPair();
    }
    highlight(state.pinned || spot);
  }

  function walk(event, kind, side, place) {
    const { tokens } = places[kind];
    const other = side === "q" ? "k" : "q";
    const moves = {
      ArrowUp: [side, place - 1], ArrowDown: [side, place + 1], Home: [side, 0], End: [side, tokens[side].length - 1],
      ArrowLeft: ["q", side === "q" ? place : Math.min(place, tokens.q.length - 1)],
      ArrowRight: ["k", side === "k" ? place : Math.min(place, tokens[other].length - 1)],
    };
    if (event.key === "Enter" || event.key === " ") pin([side, place]);
    else if (event.key === "Escape") { state.pinned = null; highlight(null); }
    else if (moves[event.key]) {
      const next = tokens[moves[event.key][0]][moves[event.key][1]];
      if (next) {
        tokens[side][place].setAttribute("tabindex", -1);
        next.setAttribute("tabindex", 0);
        next.focus();
      }
    } else return;
    event.preventDefault();
  }

  function linesOf(kind, spot) {
    const { y, left, right } = places[kind];
    const { layer, shape: [, , rows, columns] } = kinds[kind];
    const heads = chosenHeads(kind);
    const paths = new Map();
    heads.forEach((head, place) => {
      const shift = (place - (heads.length - 1) / 2) * Math.min(1.8, 14 / heads.length);
      for (let row = 0; row < rows; row++) {
        if (spot && spot[0] === "q" && spot[1] !== row) continue;
        for (let column = 0; column < columns; column++) {
          if (spot && spot[0] === "k" && spot[1] !== column) continue;
          const value = weight(kind, layer, head, row, column);
          if (value < MIN_VISIBLE) continue;
          const key = head * 16 + Math.ceil(value * OPACITIES);
          if (!paths.has(key)) paths.set(key, []);
          paths.get(key).push(`M${left + 7} ${(y.q[row] + shift).toFixed(1)}L${right - 7} ${(y.k[column] + shift).toFixed(1)}`);
        }
      }
    });
    return [...paths].sort((a, b) => a[0] - b[0]).map(([key, steps]) => mark("path", {
      class: `line h${(key >> 4) % COLORS}`, "stroke-opacity": (key & 15) / OPACITIES, d: steps.join(""),
    }));
  }

  function drawLines() {
    const { svg, remark } = places[state.kind];
    svg.querySelector(".lines").replaceChildren(...linesOf(state.kind, null));
    remark.textContent = describeSelection(state.kind);
  }

  function highlight(spot) {
    const kind = state.kind;
    markStep(spot !== null && spot[0] === "q" && kind !== "encoder" ? spot[1] : null);
    const { svg, strips, y, width, tokens, high } = places[kind];
    svg.querySelector(".lines").classList.toggle("dim", spot !== null);
    for (const group of svg.querySelectorAll(".picked")) group.classList.remove("picked");
    if (spot === null) {
      strips.replaceChildren();
      readOut(null);
      return;
    }
    const [side, place] = spot;
    tokens[side][place].classList.add("picked");
    const heads = chosenHeads(kind);
    const { layer } = kinds[kind];
    const other = side === "q" ? "k" : "q";
    const wide = Number(svg.querySelector(".lines").dataset.box);
    const boxes = [], tall = high[other] * 0.8;
    const count = kinds[kind].shape[1];
    y[other].forEach((middle, far) => heads.forEach((head) => {
      const value = side === "q" ? weight(kind, layer, head, place, far) : weight(kind, layer, head, far, place);
      if (value < 0.01) return;
      const x = (other === "k" ? width - 12 - wide * count : 12) + wide * head;
      boxes.push(mark("rect", { class: `f${head % COLORS}`, "fill-opacity": value, x, y: middle - tall / 2, width: wide - 1, height: tall }));
    }));
    strips.replaceChildren(...linesOf(kind, spot), ...boxes);
    readOut(spot);
  }

  function readOut(spot) {
    const box = document.getElementById("readout");
    const kind = kinds[state.kind];
    if (spot === null) {
      box.style.minHeight = `${1.3 * kind.heads.size + 2.5}rem`;
      box.replaceChildren(element("p", {}, "Point at a token, or use the arrow keys, to see its attention. Enter pins it, Escape unpins it."));
      return;
    }
    const [side, place] = spot;
    const heads = chosenHeads(state.kind);
    const [token, others] = side === "q" ? [kind.queryTokens[place], kind.keyTokens] : [kind.keyTokens[place], kind.queryTokens];
    const weightTo = (head, far) => side === "q" ? weight(state.kind, kind.layer, head, place, far) : weight(state.kind, kind.layer, head, far, place);
    const table = element("table");
    for (const head of heads) {
      const best = others.map((_, far) => [weightTo(head, far), far]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      const row = element("tr", {}, element("td", {}, element("span", { class: "dot " + colorClass(head) }), `head ${head + 1}`));
      for (const [value, far] of best) if (value > 0) row.append(element("td", {}, element("bdi", {}, others[far]), " " + percent(value)));
      table.append(row);
    }
    const verb = side === "q" ? " attends to" : " is attended to by";
    box.replaceChildren(element("p", {}, element("strong", {}, element("bdi", {}, token)), verb), table);
  }

  /* Steps: a step is a row of the table, a column of the beam and a token of the lines. */

  const steps = { rows: [], columns: [] };

  function prepareSteps() {
    steps.rows = [...document.querySelectorAll("#steps tbody tr:not(.group)")];
    const group = document.querySelector("#steps .columns");
    if (group) {
      const [left, top, wide, high] = [group.dataset.left, group.dataset.top, group.dataset.wide, group.dataset.high].map(Number);
      steps.columns = steps.rows.map((_, place) => mark("rect", { class: "column", x: left + wide * place - 8, y: top, width: wide - 4, height: high, rx: 4 }));
      group.append(...steps.columns);
      group.closest("svg").setAttribute("role", "group");
    }
    for (const [all, role] of [[steps.rows, null], [steps.columns, "button"]]) {
      all.forEach((target, place) => {
        target.setAttribute("tabindex", place === 0 ? 0 : -1);
        target.setAttribute("aria-label", `step ${place + 1}, ${kinds.cross.queryTokens[place]}`);
        if (role) target.setAttribute("role", role);
        target.addEventListener("click", () => chooseStep(place));
        target.addEventListener("keydown", (event) => {
          const along = role ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
          const next = all[place + along.indexOf(event.key) * 2 - 1];
          if (event.key === "Enter" || event.key === " ") chooseStep(place);
          else if (event.key === "Escape") { state.pinned = null; highlight(null); }
          else if (along.includes(event.key) && next) {
            target.setAttribute("tabindex", -1);
            next.setAttribute("tabindex", 0);
            next.focus();
          } else return;
          event.preventDefault();
        });
      });
    }
  }

  async function chooseStep(place) {
    if (state.kind === "encoder") await show("cross");
    pin(["q", place]);
  }

  function markStep(place) {
    if (place !== null) drawOverSource(place);
    for (const all of [steps.rows, steps.columns]) {
      all.forEach((target, step) => step === place ? target.setAttribute("aria-current", "step") : target.removeAttribute("aria-current"));
    }
    const box = document.getElementById("step");
    if (place === null || state.pinned === null) {
      box.replaceChildren();
      return;
    }
    const kind = kinds[state.kind], heads = chosenHeads(state.kind);
    const mean = (far) => heads.reduce((sum, head) => sum + weight(state.kind, kind.layer, head, place, far), 0) / heads.length;
    const best = kind.keyTokens.map((_, far) => [heads.length ? mean(far) : 0, far]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    const attended = best.filter(([value]) => value > 0).flatMap(([value, far], rank) => [rank ? ", " : " ", element("bdi", {}, kind.keyTokens[far]), ` ${percent(value)}`]);
    const linesButton = element("button", { type: "button" }, "show its lines");
    linesButton.addEventListener("click", () => {
      const token = places[state.kind].tokens.q[place];
      token.scrollIntoView({ block: "center" });
      token.focus({ preventScroll: true });
    });
    box.replaceChildren(`${place + 1}. `, element("strong", {}, element("bdi", {}, kind.queryTokens[place])), " attends to", ...attended, `; mean of ${describeSelection(state.kind)} `, linesButton);
  }

  /* All heads. */

  function prepareGrid(kind) {
    const mosaic = document.querySelector(`.grid[data-kind=${kind}] .mosaic`);
    if (mosaic.querySelector("button")) return;
    const { shape: [layers, heads, rows, columns], gap } = kinds[kind];
    const width = heads * (columns + gap) - gap, height = layers * (rows + gap) - gap;
    for (let layer = 0; layer < layers; layer++) {
      for (let head = 0; head < heads; head++) {
        const button = element("button", { type: "button", "data-layer": layer, "data-head": head, "aria-label": `layer ${layer + 1}, head ${head + 1}` });
        button.style.left = `${100 * head * (columns + gap) / width}%`;
        button.style.top = `${100 * layer * (rows + gap) / height}%`;
        button.style.width = `${100 * columns / width}%`;
        button.style.height = `${100 * rows / height}%`;
        button.tabIndex = layer === 0 && head === 0 ? 0 : -1;
        button.addEventListener("click", (event) => pick(kind, layer, head, event.shiftKey || event.ctrlKey || event.metaKey));
        button.addEventListener("keydown", (event) => {
          const [down, across] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] || [0, 0];
          const next = mosaic.querySelector(`[data-layer="${layer + down}"][data-head="${head + across}"]`);
          if ((down || across) && next) {
            button.tabIndex = -1;
            next.tabIndex = 0;
            next.focus();
            event.preventDefault();
          }
        });
        mosaic.append(button);
      }
    }
  }

  function pick(kind, layer, head, more) {
    const chosen = kinds[kind];
    if (more && chosen.layer === layer) chosen.heads.has(head) ? chosen.heads.delete(head) : chosen.heads.add(head);
    else if (chosen.layer === layer && chosen.heads.size === 1 && chosen.heads.has(head)) chosen.heads = new Set(Array(chosen.shape[1]).keys());
    else chosen.heads = new Set([head]);
    chosen.layer = layer;
    changed();
  }

  function pressGrid() {
    const { layer, heads } = kinds[state.kind];
    for (const button of document.querySelectorAll(`.grid[data-kind=${state.kind}] button`)) {
      button.setAttribute("aria-pressed", Number(button.dataset.layer) === layer && heads.has(Number(button.dataset.head)));
    }
  }

  /* Words. */

  let words = [];

  function measureCells() {
    const svg = document.querySelector("#words svg"), group = svg.querySelector(".cells");
    const [left, top, wide, high] = [group.dataset.left, group.dataset.top, group.dataset.wide, group.dataset.high].map(Number);
    return { svg, group, left, top, wide, high };
  }

  /* The attention of a row over the image of a sound or a picture. The greatest weight of the row has the strongest color. */
  function drawOverSource(row) {
    const { svg, left, wide } = measureCells();
    const over = svg.querySelector(".over");
    if (!over) return;
    const values = words[row], largest = Math.max(...values, 1e-9);
    const [start, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(svg.querySelector(".source").getAttribute(name)));
    over.replaceChildren(...[...values].flatMap((value, column) => {
      const x = Math.max(start, left + wide * column), end = Math.min(start + width, left + wide * (column + 1));
      if (value < largest / 50 || end <= x) return [];
      return [mark("rect", { class: "f1", "fill-opacity": 0.7 * value / largest, x, y, width: end - x, height })];
    }));
    svg.querySelectorAll(".row").forEach((label, place) => label.classList.toggle("picked", place === row));
  }

  function mergedWords() {
    const { layer, shape: [, , rows, columns] } = kinds.cross;
    const heads = chosenHeads("cross");
    const merged = data.rows.map(() => new Float64Array(data.columns.length));
    const sizes = data.rows.map((_, word) => data.rowWords.filter((other) => other === word).length);
    for (const head of heads) {
      for (let row = 0; row < rows; row++) {
        const word = data.rowWords[row];
        for (let column = 0; column < columns; column++) {
          merged[word][data.columnWords[column]] += weight("cross", layer, head, row, column) / sizes[word] / heads.length;
        }
      }
    }
    return merged;
  }

  function drawWords() {
    const { svg, group, left, top, wide, high } = measureCells();
    const [w, h] = [wide, high].map((side) => side > 8 ? side * 0.96 : side);
    words = mergedWords();
    const paths = Array.from({ length: SHADES + 1 }, () => []);
    words.forEach((values, row) => values.forEach((value, column) => {
      paths[Math.round(Math.min(value, 1) * SHADES)].push(`M${left + wide * column} ${top + high * row}h${w}v${h}h${-w}z`);
    }));
    group.replaceChildren(...paths.map((cells, shade) => mark("path", { class: "cell", "fill-opacity": shade / SHADES, d: cells.join("") })).slice(1));
    svg.querySelector("text.muted").textContent = "mean of " + describeSelection("cross");
  }

  function prepareWords() {
    const { svg, left, top, wide, high } = measureCells();
    const cursor = mark("rect", { class: "cursor", width: wide, height: high, visibility: "hidden" });
    svg.append(cursor);
    svg.setAttribute("tabindex", 0);
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-label", "weights from word to word; the arrow keys move");
    let position = [0, 0];
    const go = (row, column) => {
      if (!(row >= 0 && column >= 0 && row < data.rows.length && column < data.columns.length)) return;
      position = [row, column];
      cursor.setAttribute("x", left + wide * column);
      cursor.setAttribute("y", top + high * row);
      cursor.setAttribute("visibility", "visible");
      drawOverSource(row);
      document.getElementById("word").replaceChildren(
        element("bdi", {}, data.rows[row]), " ← ", element("bdi", {}, data.columns[column]), ": " + percent(words[row][column]),
      );
    };
    const point = (event) => {
      const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      go(Math.floor(((event.clientY - box.top) * scale - top) / high), Math.floor(((event.clientX - box.left) * scale - left) / wide));
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("click", point);
    svg.addEventListener("focus", () => go(...position));
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      go(position[0] + move[0], position[1] + move[1]);
      event.preventDefault();
    });
  }

  /* Inside one head. */

  let vectorBytes = null;

  function vectorsOf(kind, layer, head) {
    const start = data.vectors[`${kind}.${layer}.${head}`];
    if (start === undefined) return null;
    vectorBytes = vectorBytes || bytesOf(document.getElementById("vectors").textContent);
    const { shape: [, , rows, columns], widths: [d, u] } = kinds[kind];
    const view = new DataView(vectorBytes.buffer);
    let place = start + 12;
    return [[rows, d], [columns, d], [columns, u]].map(([count, width], index) => {
      const scale = view.getFloat32(start + 4 * index, true);
      return Array.from({ length: count }, () => Float64Array.from({ length: width }, () => {
        place += 2;
        return view.getInt16(place - 2, true) * scale;
      }));
    });
  }

  const dot = (a, b) => a.reduce((sum, value, place) => sum + value * b[place], 0);

  function bars(name, values) {
    const largest = Math.max(...values.map(Math.abs), 1e-9), step = 100 / values.length;
    const svg = mark("svg", { viewBox: "0 -13 100 26", preserveAspectRatio: "none", role: "img" });
    svg.append(mark("line", { x1: 0, x2: 100, y1: 0, y2: 0 }), mark("path", {
      d: [...values].map((value, place) => `M${step * place} 0v${-12 * value / largest}h${step * 0.8}V0z`).join(""),
    }));
    svg.setAttribute("aria-label", [...values].map((value) => value.toFixed(2)).join(" "));
    const title = mark("title");
    title.textContent = [...values].map((value) => value.toFixed(3)).join("  ");
    svg.append(title);
    return element("div", { class: "vector" }, element("span", {}, name), svg);
  }

  function isVisible(kind, row, column) {
    const { shape: [, , rows, columns], window } = kinds[kind];
    const position = kind === "decoder" ? row + columns - rows : row; // the decoder may read a language token first
    if (kind === "decoder" && column > position) return false;
    return window === null || Math.abs(position - column) <= window;
  }

  function selector(name, tokens, value, act) {
    const select = element("select", {}, ...tokens.map((token, place) => element("option", { value: place }, `${place + 1}  ${token}`)));
    select.value = value;
    select.addEventListener("change", () => act(Number(select.value)));
    return element("label", {}, name, select);
  }

  function drawPair() {
    const name = state.kind, kind = kinds[name], box = document.getElementById("pair"), stage = document.querySelector("#inside .scroll");
    const [row, column] = kind.pair;
    const heads = chosenHeads(name);
    const head = heads.length ? heads[0] : 0;
    const set = (place) => (value) => { kind.pair[place] = value; drawPair(); };
    const old = document.activeElement && box.contains(document.activeElement) ? [...box.querySelectorAll("select")].indexOf(document.activeElement) : -1;
    box.replaceChildren(
      element("span", {}, `${kind.name}, layer ${kind.layer + 1}, head ${head + 1}`),
      selector("from", kind.queryTokens, row, set(0)), selector("to", kind.keyTokens, column, set(1)),
    );
    if (old >= 0) box.querySelectorAll("select")[old].focus();
    const vectors = vectorsOf(name, kind.layer, head);
    if (vectors === null) {
      const held = Object.keys(data.vectors).length, short = `${name}.${kind.layer + 1}.${head + 1}`;
      stage.replaceChildren(element("p", {}, `The page holds the vectors of ${held} heads, but not of this one. To include it, write the page again with --include-head ${short}.`));
      return;
    }
    const [queries, keys, values] = vectors;
    const query = queries[row], root = Math.sqrt(query.length);
    const scores = keys.map((key, place) => isVisible(name, row, place) ? dot(query, key) / root : -Infinity);
    const top = Math.max(...scores), powers = scores.map((score) => Math.exp(score - top));
    const total = powers.reduce((a, b) => a + b, 0);
    const sizes = values.map((value) => Math.sqrt(dot(value, value)));
    const result = values[0].map((_, place) => values.reduce((sum, value, far) => sum + powers[far] / total * value[place], 0));
    const table = element("table", { id: "numbers" }, element("tr", {}, ...["key", "q · k", "÷ √d", "softmax", "weight × |value|"].map((text) => element("th", {}, text))));
    scores.forEach((score, place) => {
      const share = element("span", { class: "share" });
      share.style.width = `${powers[place] / total * 7}rem`;
      const cells = score === -Infinity ? ["hidden", "", "0", "0"] : [(score * root).toFixed(3), score.toFixed(3), percent(powers[place] / total), (powers[place] / total * sizes[place]).toFixed(3)];
      const line = element("tr", {}, element("td", {}, element("bdi", {}, kind.keyTokens[place])), ...cells.map((text, index) => element("td", {}, ...(index === 2 ? [share, text] : [text]))));
      if (place === column) line.setAttribute("aria-current", "true");
      table.append(line);
    });
    const visible = scores[column] !== -Infinity;
    const sum = visible
      ? `q · k = ${(scores[column] * root).toFixed(3)}  →  ÷ √${query.length} = ${scores[column].toFixed(3)}  →  softmax = ${percent(powers[column] / total)}`
      : "The mask hides this position: it comes later, or is outside of the window.";
    stage.replaceChildren(
      bars("query q", query), bars("key k", keys[column]), bars("q × k", query.map((value, place) => value * keys[column][place])),
      element("p", { class: "sum" }, sum), table, bars("Σ w·v", result),
    );
  }

  async function begin() {
    if (typeof DecompressionStream === "undefined") {
      document.getElementById("controls").textContent = "This browser cannot decompress the weights, so the drawings are static.";
      return;
    }
    prepareWords();
    prepareSteps();
    await show("cross");
    drawOverSource(0);
    document.documentElement.dataset.ready = String(Math.round(performance.now())); // in milliseconds
  }
  begin();
})();
