// The safetensors format: 8 bytes of length, a JSON header, then the arrays.

import { decodeText, encodeText } from "./bytes.js";
import { Refused } from "./refused.js";

const TYPES = {
  F32: { array: Float32Array, numpy: "float32" },
  F64: { array: Float64Array, numpy: "float64" },
};

/** An array with its shape. `numpy` is the name of its type in Python. */
export function tensor(data, shape) {
  const numpy = data instanceof Float64Array ? "float64" : "float32";
  return { data, shape, numpy };
}

export const rawBytes = ({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);

/** The bytes of a file with these tensors (a dict by name) and texts (`metadata`). */
export function writeTensors(tensors, metadata) {
  const header = { __metadata__: metadata };
  const parts = [];
  let at = 0;
  for (const [name, one] of Object.entries(tensors)) {
    const bytes = rawBytes(one);
    const dtype = one.numpy === "float64" ? "F64" : "F32";
    header[name] = { dtype, shape: one.shape, data_offsets: [at, at + bytes.length] };
    parts.push(bytes);
    at += bytes.length;
  }
  let text = encodeText(JSON.stringify(header));
  const padded = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(0x20);
  padded.set(text);
  text = padded;
  const file = new Uint8Array(8 + text.length + at);
  new DataView(file.buffer).setBigUint64(0, BigInt(text.length), true);
  file.set(text, 8);
  let place = 8 + text.length;
  for (const part of parts) {
    file.set(part, place);
    place += part.length;
  }
  return file;
}

/** {tensors, metadata} of a file's bytes. `what` names the file in the sentence of a refusal. */
export function readTensors(bytes, what) {
  const damaged = new Refused(`${what} is damaged or not a file of repper.`);
  if (bytes.length < 10) throw damaged;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true));
  if (!(length > 1 && length <= bytes.length - 8)) throw damaged;
  let header;
  try {
    header = JSON.parse(decodeText(bytes.subarray(8, 8 + length)));
  } catch {
    throw damaged;
  }
  if (header === null || typeof header !== "object" || Array.isArray(header)) throw damaged;
  const tensors = {};
  let end = 0;
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const type = TYPES[entry?.dtype];
    const { shape, data_offsets: offsets } = entry ?? {};
    if (!type || !Array.isArray(shape) || !Array.isArray(offsets)) throw damaged;
    const count = shape.reduce((product, size) => product * size, 1);
    const [from, to] = offsets;
    const whole = [from, to, ...shape].every((number) => Number.isInteger(number) && number >= 0);
    const fits = to - from === count * type.array.BYTES_PER_ELEMENT && 8 + length + to <= bytes.length;
    if (!whole || !fits) throw damaged;
    const copy = bytes.slice(8 + length + from, 8 + length + to);
    tensors[name] = tensor(new type.array(copy.buffer), shape);
    end = Math.max(end, to);
  }
  if (8 + length + end !== bytes.length) throw damaged;
  return { tensors, metadata: header.__metadata__ ?? {} };
}
