// Zip archives: written without compression (photos are compressed already), read with and without.

import { decodeText, encodeText, inflate } from "./bytes.js";
import { Refused } from "./refused.js";

const TABLE = new Uint32Array(256);
for (let n = 0; n < 256; n += 1) {
  let c = n;
  for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  TABLE[n] = c;
}

function crc32(bytes) {
  let c = 0xffffffff;
  for (let i = 0; i < bytes.length; i += 1) c = TABLE[(c ^ bytes[i]) & 0xff] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}

const LARGEST = 0xffffffff;
// Every entry has the same date: the same photos give the same archive.
const DATE = (46 << 9) | (1 << 5) | 1; // 1 January 2026
const UTF8 = 0x0800;

function record(signature, fields) {
  const bytes = new Uint8Array(4 + fields.reduce((sum, [size]) => sum + size, 0));
  const view = new DataView(bytes.buffer);
  view.setUint32(0, signature, true);
  let at = 4;
  for (const [size, value] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += size;
  }
  return bytes;
}

/** A Blob with the entries [{name, blob}]; photos are referred to, not copied. */
export async function writeZip(entries) {
  const parts = [];
  const directory = [];
  let at = 0;
  for (const { name, blob } of entries) {
    const text = encodeText(name);
    const sum = crc32(new Uint8Array(await blob.arrayBuffer()));
    const shared = [
      [2, 20], [2, UTF8], [2, 0], [2, 0], [2, DATE],
      [4, sum], [4, blob.size], [4, blob.size], [2, text.length], [2, 0],
    ];
    parts.push(record(0x04034b50, shared), text, blob);
    directory.push(record(0x02014b50, [[2, 20], ...shared, [2, 0], [2, 0], [2, 0], [4, 0], [4, at]]), text);
    at += 30 + text.length + blob.size;
    if (at > LARGEST || directory.length > 2 * 0xffff) {
      throw new Refused("These photos are more than one archive can hold (4 GB, 65,535 files).");
    }
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const count = entries.length;
  const end = record(0x06054b50, [[2, 0], [2, 0], [2, count], [2, count], [4, size], [4, at], [2, 0]]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

/** The files of an archive: [{name, size, read()}]; `read` checks the contents' checksum. */
export async function readZip(blob) {
  const damaged = new Refused("The archive is damaged or not a zip file.");
  const tail = new Uint8Array(await blob.slice(Math.max(0, blob.size - 65557)).arrayBuffer());
  let end = tail.length - 22;
  const view = new DataView(tail.buffer);
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw damaged;
  const count = view.getUint16(end + 10, true);
  const size = view.getUint32(end + 12, true);
  const start = view.getUint32(end + 16, true);
  if (start === LARGEST || count === 0xffff) throw new Refused("Archives above 4 GB cannot be opened.");
  if (start + size > blob.size) throw damaged;
  const bytes = new Uint8Array(await blob.slice(start, start + size).arrayBuffer());
  const directory = new DataView(bytes.buffer);
  const files = [];
  let at = 0;
  for (let i = 0; i < count; i += 1) {
    if (at + 46 > size || directory.getUint32(at, true) !== 0x02014b50) throw damaged;
    const [flags, method] = [directory.getUint16(at + 8, true), directory.getUint16(at + 10, true)];
    const sum = directory.getUint32(at + 16, true);
    const packed = directory.getUint32(at + 20, true);
    const full = directory.getUint32(at + 24, true);
    const [named, extra, note] = [28, 30, 32].map((place) => directory.getUint16(at + place, true));
    const offset = directory.getUint32(at + 42, true);
    const raw = bytes.subarray(at + 46, at + 46 + named);
    at += 46 + named + extra + note;
    let name;
    try {
      name = decodeText(raw);
    } catch {
      name = new TextDecoder("windows-1252").decode(raw);
    }
    if (name.endsWith("/")) continue;
    if (flags & 1) throw new Refused("Archives with a password cannot be opened.");
    if (method !== 0 && method !== 8) throw new Refused("The archive is compressed in an unusual way.");
    files.push({ name, size: full, read: () => readEntry(blob, { offset, packed, full, method, sum, name }) });
  }
  return files;
}

async function readEntry(blob, { offset, packed, full, method, sum, name }) {
  const damaged = new Refused(`${name} in the archive is damaged.`);
  const start = new DataView(await blob.slice(offset, offset + 30).arrayBuffer());
  if (start.byteLength < 30 || start.getUint32(0, true) !== 0x04034b50) throw damaged;
  const from = offset + 30 + start.getUint16(26, true) + start.getUint16(28, true);
  let bytes = new Uint8Array(await blob.slice(from, from + packed).arrayBuffer());
  if (method === 8) {
    // What is promised is compared before it is unpacked: deflate gains at most a factor of 1,032.
    if (full > packed * 1040 + 64) throw damaged;
    try {
      bytes = await inflate(bytes, "deflate-raw");
    } catch {
      throw damaged;
    }
  }
  if (bytes.length !== full || crc32(bytes) !== sum) throw damaged;
  return bytes;
}
