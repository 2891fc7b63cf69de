// PNG files, decoded here: a canvas would change the colours of half-transparent pixels, and
// browsers disagree about colour profiles, gamma and sixteen bits.

import { inflate } from "../files/bytes.js";
import { orientationOf, turned } from "./orientation.js";

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
const SAMPLES = { 0: 1, 2: 3, 3: 1, 4: 2, 6: 4 };
const DEPTHS = { 0: [1, 2, 4, 8, 16], 2: [8, 16], 3: [1, 2, 4, 8], 4: [8, 16], 6: [8, 16] };
// Adam7: first column, first row, and the steps between.
const PASSES = [[0, 0, 8, 8], [4, 0, 8, 8], [0, 4, 4, 8], [2, 0, 4, 4], [0, 2, 2, 4], [1, 0, 2, 2], [0, 1, 1, 2]];
const LARGEST = 178956970; // pixels; Pillow refuses more than twice this

export const isPng = (bytes) => SIGNATURE.every((byte, i) => bytes[i] === byte);

/** {rgba, width, height} of a PNG file's bytes, not yet laid on white. */
export async function decodePng(bytes) {
  const { header, palette, transparency, packed, orientation } = chunksOf(bytes);
  const { width, height, depth, type, interlaced } = header;
  const data = await inflate(packed, "deflate");
  const rgba = new Uint8Array(width * height * 4);
  const samples = SAMPLES[type];
  const colours = coloursOf(type, depth, palette, transparency);
  let at = 0;
  for (const [left, top, stepX, stepY] of interlaced ? PASSES : [[0, 0, 1, 1]]) {
    const columns = Math.ceil((width - left) / stepX);
    const rows = Math.ceil((height - top) / stepY);
    if (columns <= 0 || rows <= 0) continue;
    const line = Math.ceil((columns * samples * depth) / 8);
    if (at + rows * (line + 1) > data.length) throw new Error("the PNG file ends early");
    unfilter(data, at, rows, line, Math.max(1, (samples * depth) >> 3));
    for (let y = 0; y < rows; y += 1) {
      const start = at + y * (line + 1) + 1;
      const place = ((top + y * stepY) * width + left) * 4;
      colours(data, start, columns, rgba, place, stepX * 4);
    }
    at += rows * (line + 1);
  }
  return turned(rgba, width, height, orientation);
}

function chunksOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const found = { header: null, palette: null, transparency: null, orientation: 1 };
  const parts = [];
  for (let at = 8; at + 12 <= bytes.length; ) {
    const length = view.getUint32(at);
    const kind = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    const body = bytes.subarray(at + 8, at + 8 + length);
    if (body.length < length) throw new Error("the PNG file ends early");
    if (kind === "IHDR") found.header = headerOf(body);
    else if (kind === "PLTE") found.palette = body;
    else if (kind === "tRNS") found.transparency = body;
    else if (kind === "eXIf") found.orientation = orientationOf(body);
    else if (kind === "IDAT") parts.push(body);
    else if (kind === "IEND") break;
    at += 12 + length;
  }
  if (!found.header || parts.length === 0) throw new Error("not a PNG file");
  return { ...found, packed: new Blob(parts) };
}

function headerOf(body) {
  const view = new DataView(body.buffer, body.byteOffset, body.byteLength);
  const [width, height] = [view.getUint32(0), view.getUint32(4)];
  const [depth, type, compression, filter, interlace] = body.subarray(8, 13);
  if (!DEPTHS[type]?.includes(depth) || compression || filter || interlace > 1) {
    throw new Error("an unusual PNG file");
  }
  if (width < 1 || height < 1 || width * height > LARGEST) throw new Error("too large");
  return { width, height, depth, type, interlaced: interlace === 1 };
}

/** Undo the filters of every line, in place. */
function unfilter(data, from, rows, line, step) {
  for (let y = 0; y < rows; y += 1) {
    const start = from + y * (line + 1) + 1;
    const kind = data[start - 1];
    const above = y > 0 ? start - line - 1 : -1;
    const end = start + line;
    if (kind === 0) continue;
    if (kind === 1) {
      for (let i = start + step; i < end; i += 1) data[i] += data[i - step];
    } else if (kind === 2) {
      if (above >= 0) for (let i = start, j = above; i < end; i += 1, j += 1) data[i] += data[j];
    } else if (kind === 3) {
      for (let i = 0; i < line; i += 1) {
        const left = i >= step ? data[start + i - step] : 0;
        const up = above >= 0 ? data[above + i] : 0;
        data[start + i] += (left + up) >> 1;
      }
    } else if (kind === 4) {
      for (let i = 0; i < line; i += 1) {
        const left = i >= step ? data[start + i - step] : 0;
        const up = above >= 0 ? data[above + i] : 0;
        const corner = above >= 0 && i >= step ? data[above + i - step] : 0;
        const guess = left + up - corner;
        const [a, b, c] = [Math.abs(guess - left), Math.abs(guess - up), Math.abs(guess - corner)];
        data[start + i] += a <= b && a <= c ? left : b <= c ? up : corner;
      }
    } else {
      throw new Error("an unusual PNG file");
    }
  }
}

/** A function that writes one line of samples as RGBA pixels, `step` bytes apart. */
function coloursOf(type, depth, palette, transparency) {
  if (depth < 8 || type === 3) return indexedColours(type, depth, palette, transparency);
  const wide = depth === 16 ? 2 : 1;
  const count = SAMPLES[type];
  const clear = depth === 8 && transparency ? transparency : null;
  return (data, start, columns, rgba, place, step) => {
    for (let x = 0, at = start, to = place; x < columns; x += 1, at += count * wide, to += step) {
      if (type === 0) {
        // Of sixteen bits repper rounds grey, while Pillow keeps the upper byte of colours.
        const grey = wide === 2 ? Math.round((data[at] * 256 + data[at + 1]) / 257) : data[at];
        rgba[to] = rgba[to + 1] = rgba[to + 2] = grey;
        rgba[to + 3] = clear && grey === clear[1] && clear[0] === 0 ? 0 : 255;
      } else if (type === 4) {
        rgba[to] = rgba[to + 1] = rgba[to + 2] = data[at];
        rgba[to + 3] = data[at + wide];
      } else {
        const [r, g, b] = [data[at], data[at + wide], data[at + 2 * wide]];
        rgba[to] = r;
        rgba[to + 1] = g;
        rgba[to + 2] = b;
        if (type === 6) rgba[to + 3] = data[at + 3 * wide];
        else rgba[to + 3] = clear && r === clear[1] && g === clear[3] && b === clear[5] ? 0 : 255;
      }
    }
  };
}

/** Palettes, and grey of fewer than eight bits: a table of the possible colours. */
function indexedColours(type, depth, palette, transparency) {
  const size = 1 << depth;
  const table = new Uint8Array(size * 4);
  for (let i = 0; i < size; i += 1) {
    const grey = (i * 255) / (size - 1);
    for (let c = 0; c < 3; c += 1) table[4 * i + c] = type === 3 ? (palette?.[3 * i + c] ?? 0) : grey;
    const alpha = type === 3 ? (transparency?.[i] ?? 255) : 255;
    table[4 * i + 3] = alpha;
  }
  if (type === 0 && transparency) table[4 * (transparency[1] % size) + 3] = 0;
  return (data, start, columns, rgba, place, step) => {
    for (let x = 0, to = place; x < columns; x += 1, to += step) {
      const bit = x * depth;
      const value = (data[start + (bit >> 3)] >> (8 - depth - (bit & 7))) & (size - 1);
      for (let c = 0; c < 4; c += 1) rgba[to + c] = table[4 * value + c];
    }
  };
}
