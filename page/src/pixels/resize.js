// Pillow's BILINEAR: a triangle filter that widens when it shrinks, in two passes of 8-bit fixed point.
// Every rounding is Pillow's own (libImaging/Resample.c), so that Python sees the same pixels.

const BITS = 22; // Pillow's PRECISION_BITS: 32 - 8 - 2

/** ImageOps.fit's box of the central square; Pillow hands it on as 32-bit floats. */
export function centralSquare(width, height) {
  const ratio = width / height;
  const cropWidth = ratio > 1 ? height : width;
  const cropHeight = ratio < 1 ? width : height;
  const left = (width - cropWidth) * 0.5;
  const top = (height - cropHeight) * 0.5;
  return [left, top, left + cropWidth, top + cropHeight].map(Math.fround);
}

/** For every output pixel: the first input pixel, how many, and their weights. */
function weights(inputs, from, to, outputs) {
  const scale = Math.fround(to - from) / outputs;
  const support = Math.max(scale, 1);
  const longest = Math.ceil(support) * 2 + 1;
  const first = new Int32Array(outputs);
  const counts = new Int32Array(outputs);
  const table = new Int32Array(outputs * longest);
  const row = new Float64Array(longest);
  for (let out = 0; out < outputs; out += 1) {
    const center = from + (out + 0.5) * scale;
    const low = Math.max(Math.trunc(center - support + 0.5), 0);
    const high = Math.min(Math.trunc(center + support + 0.5), inputs);
    const count = high - low;
    let sum = 0;
    for (let i = 0; i < count; i += 1) {
      const x = Math.abs((i + low - center + 0.5) * (1 / support));
      row[i] = x < 1 ? 1 - x : 0;
      sum += row[i];
    }
    for (let i = 0; i < count; i += 1) {
      const share = sum === 0 ? row[i] : row[i] / sum;
      table[out * longest + i] = Math.trunc(0.5 + share * (1 << BITS));
    }
    first[out] = low;
    counts[out] = count;
  }
  return { first, counts, table, longest };
}

const HALF = 1 << (BITS - 1);

/** Resize the rows `from` to `to` of an image across; the result has no other rows, nor spare bytes. */
function across(source, { width, stride, channels, from, to }, { first, counts, table, longest }) {
  const line = first.length * channels;
  const result = new Uint8Array((to - from) * line);
  for (let y = from; y < to; y += 1) {
    for (let x = 0; x < first.length; x += 1) {
      const weight = x * longest;
      let at = (y * width + first[x]) * stride;
      const place = (y - from) * line + x * channels;
      if (channels === 3) {
        let [r, g, b] = [HALF, HALF, HALF];
        for (let i = 0; i < counts[x]; i += 1, at += stride) {
          const w = table[weight + i];
          r += source[at] * w;
          g += source[at + 1] * w;
          b += source[at + 2] * w;
        }
        result[place] = Math.min(r >> BITS, 255);
        result[place + 1] = Math.min(g >> BITS, 255);
        result[place + 2] = Math.min(b >> BITS, 255);
      } else {
        let sum = HALF;
        for (let i = 0; i < counts[x]; i += 1, at += stride) sum += source[at] * table[weight + i];
        result[place] = Math.min(sum >> BITS, 255);
      }
    }
  }
  return result;
}

/** Resize downwards an image with lines of `line` bytes whose first row is row `from` of the whole. */
function downwards(source, line, from, { first, counts, table, longest }) {
  const result = new Uint8Array(first.length * line);
  const sums = new Int32Array(line);
  for (let y = 0; y < first.length; y += 1) {
    sums.fill(HALF);
    for (let i = 0; i < counts[y]; i += 1) {
      const weight = table[y * longest + i];
      const start = (first[y] - from + i) * line;
      for (let x = 0; x < line; x += 1) sums[x] += source[start + x] * weight;
    }
    for (let x = 0; x < line; x += 1) result[y * line + x] = Math.min(sums[x] >> BITS, 255);
  }
  return result;
}

/**
 * The central square of an image, resized: uint8 of size * size * channels.
 *
 * `source` has `stride` bytes per pixel, of which the first `channels` (1 or 3) are used.
 */
export function squareOf(source, width, height, stride, channels, size) {
  if (width === size && height === size) {
    const result = new Uint8Array(size * size * channels);
    for (let i = 0, at = 0; i < size * size; i += 1) {
      for (let c = 0; c < channels; c += 1) result[at++] = source[i * stride + c];
    }
    return result;
  }
  const [left, top, right, bottom] = centralSquare(width, height);
  const columns = weights(width, left, right, size);
  const rows = weights(height, top, bottom, size);
  // Since version 13 Pillow begins with the height where that shrinks far more than the width.
  if (height > size && height - size > 2 * (width - size)) {
    const middle = downwards(source, width * stride, 0, rows);
    return across(middle, { width, stride, channels, from: 0, to: size }, columns);
  }
  const from = rows.first[0];
  const to = rows.first[size - 1] + rows.counts[size - 1];
  return downwards(across(source, { width, stride, channels, from, to }, columns), size * channels, from, rows);
}
