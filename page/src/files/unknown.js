// The rule that answers "unknown": a photo that is far from every class.

import { Refused } from "./refused.js";
import { readTensors, tensor, writeTensors } from "./safetensors.js";

const FORMAT = "repper-unknown-1";

export class Unknown {
  constructor(tensors, encoder) {
    Object.assign(this, { tensors, encoder });
  }

  static of(means, whiten, threshold, encoder) {
    const features = Math.round(Math.sqrt(whiten.length));
    const tensors = {
      means: tensor(Float32Array.from(means), [means.length / features, features]),
      whiten: tensor(Float32Array.from(whiten), [features, features]),
      threshold: tensor(Float32Array.of(threshold), [1]),
    };
    return new Unknown(tensors, encoder);
  }

  get threshold() {
    return this.tensors.threshold.data[0];
  }

  distance(features) {
    this.measure ??= new Distance(this.tensors.means.data, this.tensors.whiten.data);
    return this.measure.of(features);
  }

  bytes() {
    return writeTensors(this.tensors, { format: FORMAT, encoder: this.encoder });
  }
}

/** Distances to the nearest of some means: the smallest || (x - mean) whiten ||. */
export class Distance {
  constructor(means, whiten) {
    this.size = Math.round(Math.sqrt(whiten.length));
    this.whiten = whiten;
    this.isUpper = true;
    for (let i = 1; i < this.size && this.isUpper; i += 1) {
      for (let j = 0; j < i && this.isUpper; j += 1) this.isUpper = whiten[i * this.size + j] === 0;
    }
    this.moved = [];
    for (let at = 0; at < means.length; at += this.size) {
      this.moved.push(this.times(means.subarray(at, at + this.size)));
    }
  }

  times(x) {
    const { size, whiten } = this;
    const result = new Float64Array(size);
    for (let i = 0; i < size; i += 1) {
      const value = x[i];
      for (let j = this.isUpper ? i : 0; j < size; j += 1) result[j] += value * whiten[i * size + j];
    }
    return result;
  }

  of(x) {
    const own = this.times(x);
    let best = Infinity;
    for (const mean of this.moved) {
      let squares = 0;
      for (let j = 0; j < this.size; j += 1) squares += (own[j] - mean[j]) ** 2;
      best = Math.min(best, squares);
    }
    return Math.sqrt(best);
  }
}

export function readUnknown(bytes, encoder, features) {
  const { tensors, metadata } = readTensors(bytes, "The file of the rule for unknown photos");
  const { means, whiten, threshold } = tensors;
  const fits =
    metadata.format === FORMAT &&
    means?.shape.length === 2 &&
    means.shape[1] === features &&
    whiten?.shape.length === 2 &&
    whiten.shape.every((size) => size === features) &&
    threshold?.data.length === 1;
  if (!fits) throw new Refused("The file of the rule for unknown photos is damaged or not for this encoder.");
  if (metadata.encoder !== encoder) {
    throw new Refused("The rule for unknown photos belongs to another encoder.");
  }
  return new Unknown(tensors, encoder);
}
