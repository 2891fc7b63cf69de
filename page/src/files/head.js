// A fitted head: its scores and its file, as in repper/edge/saved_head.py.

import { encodeText } from "./bytes.js";
import { pythonJson } from "./python_json.js";
import { Refused } from "./refused.js";
import { rawBytes, readTensors, tensor, writeTensors } from "./safetensors.js";
import { sha256 } from "./sha256.js";

const FORMAT = "repper-head-1";
const SHAPES = {
  linear: ["mean", "scale", "weight", "bias"],
  mlp: ["mean", "scale", "hidden_weight", "hidden_bias", "weight", "bias"],
  rbf: ["mean", "scale", "vectors", "gamma", "weight", "bias"],
};

const pythonTuple = (shape) => (shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`);

/** x W' + b for a matrix W with rows of x's length. */
function affine(x, weight, bias) {
  const [rows, columns] = weight.shape;
  const result = new Float64Array(rows);
  for (let row = 0; row < rows; row += 1) {
    let sum = bias.data[row];
    for (let i = 0; i < columns; i += 1) sum += x[i] * weight.data[row * columns + i];
    result[row] = sum;
  }
  return result;
}

export class Head {
  /** `classes` are integer labels in the order of the scores, `names` those of the classes. */
  constructor({ kind, shape, tensors, classes, names, encoder, unitInput = false }) {
    Object.assign(this, { kind, shape, tensors, classes, names, encoder, unitInput });
  }

  static linear(names, weight, bias, encoder) {
    const features = weight.length / names.length;
    const tensors = {
      mean: tensor(new Float32Array(features), [features]),
      scale: tensor(Float32Array.of(1), [1]),
      weight: tensor(Float32Array.from(weight), [names.length, features]),
      bias: tensor(Float32Array.from(bias), [names.length]),
    };
    const classes = names.map((_, place) => place);
    return new Head({ kind: "logistic", shape: "linear", tensors, classes, names, encoder });
  }

  get features() {
    return this.tensors.mean.shape[0];
  }

  /** One score for every class of one image's features. */
  scores(features) {
    const { mean, scale, weight, bias } = this.tensors;
    const x = Float64Array.from(features);
    if (this.unitInput) {
      const norm = Math.max(Math.hypot(...x), 1e-12);
      for (let i = 0; i < x.length; i += 1) x[i] /= norm;
    }
    for (let i = 0; i < x.length; i += 1) {
      x[i] = (x[i] - mean.data[i]) / scale.data[scale.data.length === 1 ? 0 : i];
    }
    if (this.shape === "mlp") {
      const hidden = affine(x, this.tensors.hidden_weight, this.tensors.hidden_bias);
      return affine(hidden.map((value) => Math.max(value, 0)), weight, bias);
    }
    if (this.shape === "rbf") {
      const { vectors, gamma } = this.tensors;
      const near = new Float64Array(vectors.shape[0]);
      for (let row = 0; row < near.length; row += 1) {
        let squares = 0;
        for (let i = 0; i < x.length; i += 1) squares += (x[i] - vectors.data[row * x.length + i]) ** 2;
        near[row] = Math.exp(-gamma.data[0] * squares);
      }
      return affine(near, weight, bias);
    }
    return affine(x, weight, bias);
  }

  header() {
    return {
      format: FORMAT,
      kind: this.kind,
      shape: this.shape,
      classes: pythonJson(this.classes),
      names: pythonJson(this.names),
      encoder: this.encoder,
      input: this.unitInput ? "z" : "r",
    };
  }

  digest() {
    const parts = [encodeText(pythonJson(this.header()))];
    for (const name of SHAPES[this.shape]) {
      const one = this.tensors[name];
      parts.push(encodeText(`${name} ${one.numpy} ${pythonTuple(one.shape)}\n`), rawBytes(one));
    }
    return sha256(...parts);
  }

  bytes() {
    return writeTensors(this.tensors, { ...this.header(), digest: this.digest() });
  }
}

/** The head in a file's bytes, checked against its own digest and against the page's encoder. */
export function readHead(bytes, encoder, features) {
  const { tensors, metadata } = readTensors(bytes, "The head file");
  const needed = SHAPES[metadata.shape];
  if (
    metadata.format !== FORMAT ||
    !needed ||
    needed.some((name) => !(name in tensors)) ||
    Object.keys(tensors).length !== needed.length
  ) {
    throw new Refused("This is not a head file of this version of repper.");
  }
  let head;
  try {
    head = new Head({
      kind: metadata.kind,
      shape: metadata.shape,
      tensors,
      classes: JSON.parse(metadata.classes),
      names: JSON.parse(metadata.names),
      encoder: metadata.encoder,
      unitInput: metadata.input === "z",
    });
    if (head.digest() !== metadata.digest) throw new Error("digest");
  } catch {
    throw new Refused("The head file is damaged: its contents do not match its digest.");
  }
  if (head.encoder !== encoder) {
    throw new Refused(
      `This head was fitted on encoder ${String(head.encoder).slice(0, 12)}, not on this page's ` +
        `encoder ${encoder.slice(0, 12)}: open it in its own page, or fit a new head here.`,
    );
  }
  if (head.features !== features || head.tensors.weight.shape[0] !== head.names.length) {
    throw new Refused("The head file does not fit the features of this page's encoder.");
  }
  return head;
}

/** Probabilities of scores. */
export function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = Array.from(scores, (score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}
