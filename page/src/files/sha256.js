// SHA-256 (FIPS 180-4). The browser's own needs a secure address; a page in a local network has none.

const K = new Uint32Array(64);
const START = new Uint32Array(8);

{
  const fraction = (x) => Math.floor((x - Math.floor(x)) * 2 ** 32);
  let found = 0;
  for (let n = 2; found < 64; n += 1) {
    let prime = true;
    for (let m = 2; m * m <= n && prime; m += 1) prime = n % m !== 0;
    if (!prime) continue;
    if (found < 8) START[found] = fraction(Math.sqrt(n));
    K[found] = fraction(Math.cbrt(n));
    found += 1;
  }
}

/** The digest of some byte arrays, one after the other, as 64 hex characters. */
export function sha256(...parts) {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const state = START.slice();
  const words = new Uint32Array(64);
  const block = new Uint8Array(64);
  let filled = 0;

  const mix = (bytes, at) => {
    for (let i = 0; i < 16; i += 1) {
      const j = at + 4 * i;
      words[i] = (bytes[j] << 24) | (bytes[j + 1] << 16) | (bytes[j + 2] << 8) | bytes[j + 3];
    }
    for (let i = 16; i < 64; i += 1) {
      const a = words[i - 15];
      const b = words[i - 2];
      const s0 = ((a >>> 7) | (a << 25)) ^ ((a >>> 18) | (a << 14)) ^ (a >>> 3);
      const s1 = ((b >>> 17) | (b << 15)) ^ ((b >>> 19) | (b << 13)) ^ (b >>> 10);
      words[i] = (words[i - 16] + s0 + words[i - 7] + s1) | 0;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i += 1) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + words[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + t1) | 0;
      d = c; c = b; b = a; a = (t1 + t2) | 0;
    }
    state[0] += a; state[1] += b; state[2] += c; state[3] += d;
    state[4] += e; state[5] += f; state[6] += g; state[7] += h;
  };

  for (const part of parts) {
    let at = 0;
    if (filled > 0) {
      at = Math.min(64 - filled, part.length);
      block.set(part.subarray(0, at), filled);
      filled += at;
      if (filled < 64) continue;
      mix(block, 0);
      filled = 0;
    }
    for (; at + 64 <= part.length; at += 64) mix(part, at);
    block.set(part.subarray(at), 0);
    filled = part.length - at;
  }
  block[filled] = 0x80;
  block.fill(0, filled + 1);
  if (filled >= 56) {
    mix(block, 0);
    block.fill(0);
  }
  new DataView(block.buffer).setBigUint64(56, BigInt(length) * 8n);
  mix(block, 0);
  return Array.from(state, (word) => word.toString(16).padStart(8, "0")).join("");
}
