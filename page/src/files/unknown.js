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

  /** The smallest || (x - mean) whiten || over the classes. */
  distance(features) {
    const { means, whiten } = this.tensors;
    return nearest(features, means.data, whiten.data);
  }

  bytes() {
    return writeTensors(this.tensors, { format: FORMAT, encoder: this.encoder });
  }
}

export function nearest(features, means, whiten) {
  const d = features.length;
  let best = Infinity;
  const moved = new Float64Array(d);
  for (let row = 0; row < means.length; row += d) {
    moved.fill(0);
    for (let i = 0; i < d; i += 1) {
      const difference = features[i] - means[row + i];
      if (difference === 0) continue;
      for (let j = 0; j < d; j += 1) moved[j] += difference * whiten[i * d + j];
    }
    let squares = 0;
    for (let j = 0; j < d; j += 1) squares += moved[j] * moved[j];
    best = Math.min(best, squares);
  }
  return Math.sqrt(best);
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
