// SentencePiece models of the types unigram and BPE: the file, the normalization, the segmentation, and text from pieces.

const SPACE = "▁", UNKNOWN_TEXT = " ⁇ ", UNKNOWN_PENALTY = 10;
const NORMAL = 1, UNKNOWN = 2, BYTE = 6;
const utf8 = new TextEncoder(), text = new TextDecoder();

// Fields of a protobuf message as [number, value]; a value is a number, or the bytes of a text, a message or a float.
function* readFields(bytes) {
  let position = 0;
  const varint = () => {
    let value = 0, factor = 1, byte;
    do {
      byte = bytes[position++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte & 128);
    return value;
  };
  while (position < bytes.length) {
    const key = varint(), kind = key & 7;
    if (kind === 0) {
      yield [key >> 3, varint()];
      continue;
    }
    const size = kind === 2 ? varint() : kind === 1 ? 8 : 4;
    yield [key >> 3, bytes.subarray(position, position + size)];
    position += size;
  }
}

const readFloat = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, 4).getFloat32(0, true);

export class SentencePiece {
  constructor(bytes) {
    this.scores = new Map(); // of the pieces that a text can have
    this.unknown = "<unk>";
    Object.assign(this, { isBpe: false, hasBytes: false, addsSpace: true, removesSpaces: true, escapesSpaces: true, trie: null });
    for (const [field, value] of readFields(bytes)) {
      if (field === 1) this.addPiece(value);
      if (field === 2) this.readTrainer(value);
      if (field === 3) this.readNormalizer(value);
    }
    this.longest = Math.max(...[...this.scores.keys()].map((piece) => [...piece].length));
    this.unknownScore = Math.fround([...this.scores.values()].reduce((least, score) => Math.min(least, score)) - UNKNOWN_PENALTY);
  }

  addPiece(message) {
    const { 1: name, 2: score, 3: type = NORMAL } = Object.fromEntries(readFields(message));
    const piece = text.decode(name);
    if (type === NORMAL) this.scores.set(piece, score ? readFloat(score) : 0);
    if (type === UNKNOWN) this.unknown = piece;
    if (type === BYTE) this.hasBytes = true;
  }

  readTrainer(message) {
    for (const [field, value] of readFields(message)) if (field === 3) this.isBpe = value === 2;
  }

  // The table of the normalization is a trie in a double array, and the texts that its values point to.
  readNormalizer(message) {
    for (const [field, value] of readFields(message)) {
      if (field === 3) this.addsSpace = Boolean(value);
      if (field === 4) this.removesSpaces = Boolean(value);
      if (field === 5) this.escapesSpaces = Boolean(value);
      if (field !== 2 || !value.length) continue;
      const size = new DataView(value.buffer, value.byteOffset).getUint32(0, true);
      this.trie = new Uint32Array(value.slice(4, 4 + size).buffer);
      this.replacements = value.slice(4 + size);
    }
  }

  // The replacement of the longest entry at a position, or the character there, and its number of bytes.
  normalizePrefix(bytes, start) {
    let found = null;
    if (this.trie) {
      const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
      let node = offset(this.trie[0]);
      for (let end = start; end < bytes.length; end++) {
        node ^= bytes[end];
        const unit = this.trie[node];
        if (unit === undefined || ((unit & 0x800000ff) >>> 0) !== bytes[end]) break;
        node ^= offset(unit);
        if ((unit >>> 8) & 1) found = [this.trie[node] & 0x7fffffff, end + 1 - start];
      }
    }
    if (found) {
      const [first, size] = found;
      return [text.decode(this.replacements.subarray(first, this.replacements.indexOf(0, first))), size];
    }
    const lead = bytes[start], size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    return [text.decode(bytes.subarray(start, start + size)), size];
  }

  normalize(line) {
    const bytes = utf8.encode(line), space = this.escapesSpaces ? SPACE : " ";
    let result = "", afterSpace = this.removesSpaces;
    for (let position = 0; position < bytes.length;) {
      let [part, size] = this.normalizePrefix(bytes, position);
      position += size;
      if (afterSpace) part = part.replace(/^ +/, "");
      if (part) afterSpace = this.removesSpaces && part.endsWith(" ");
      result += part.replaceAll(" ", space);
    }
    while (this.removesSpaces && result.endsWith(space)) result = result.slice(0, -space.length);
    return result && this.addsSpace ? space + result : result;
  }

  // The pieces of a line. One that the model lacks becomes its bytes, if the model has them.
  encode(line) {
    const characters = [...this.normalize(line)];
    const pieces = this.isBpe ? this.splitBpe(characters) : this.splitUnigram(characters);
    if (!this.hasBytes) return pieces;
    const name = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
    return pieces.flatMap((piece) => (this.scores.has(piece) ? [piece] : [...utf8.encode(piece)].map(name)));
  }

  // The most probable pieces. Sums are float32, as those of SentencePiece.
  splitUnigram(characters) {
    const best = characters.map(() => null);
    let before = 0;
    for (let start = 0; start < characters.length; start++) {
      const update = (end, score) => {
        const total = Math.fround(score + before);
        if (!best[end] || total > best[end].total) best[end] = { total, start };
      };
      let piece = "";
      for (let end = start; end < Math.min(characters.length, start + this.longest); end++) {
        piece += characters[end];
        const score = this.scores.get(piece);
        if (score !== undefined) update(end, score);
        else if (end === start) update(end, this.unknownScore);
      }
      before = best[start].total;
    }
    const pieces = [];
    for (let end = characters.length - 1; end >= 0; end = best[end].start - 1) {
      pieces.unshift(characters.slice(best[end].start, end + 1).join(""));
    }
    return pieces;
  }

  // Merge the neighbors whose piece has the best score, the first of equal ones.
  splitBpe(pieces) {
    const score = (index) => this.scores.get(pieces[index] + pieces[index + 1]) ?? -Infinity;
    const scores = pieces.map((_, index) => score(index));
    for (;;) {
      let best = 0;
      for (let index = 1; index < scores.length; index++) if (scores[index] > scores[best]) best = index;
      if (!(scores[best] > -Infinity)) return pieces;
      pieces.splice(best, 2, pieces[best] + pieces[best + 1]);
      scores.splice(best, 1);
      scores[best] = score(best);
      if (best) scores[best - 1] = score(best - 1);
    }
  }

  decode(pieces) {
    let result = "", bytes = [];
    const flush = () => {
      result += text.decode(Uint8Array.from(bytes));
      bytes = [];
    };
    for (const piece of pieces) {
      const byte = this.hasBytes && /^<0x([0-9A-F]{2})>$/.exec(piece);
      if (byte) {
        bytes.push(parseInt(byte[1], 16));
        continue;
      }
      flush();
      const isFirst = !result && (this.addsSpace || this.removesSpaces);
      if (piece === this.unknown) result += UNKNOWN_TEXT;
      else result += (isFirst && piece.startsWith(SPACE) ? piece.slice(1) : piece).replaceAll(SPACE, " ");
    }
    flush();
    return result.replace(/[\n\r]/g, " ");
  }
}
