// The rule for unknown photos: the Mahalanobis distance to the nearest class, with the shrunk
// covariance within the classes (Ledoit and Wolf 2004, as scikit-learn computes it).

import { Distance } from "../files/unknown.js";
import { cholesky, inverseTransposed } from "./matrix.js";

export const FEWEST = 10;
export const MOST_FEATURES = 1536; // the time grows with their cube
const KNOWN = 0.95; // share of held-out photos that the rule must know

async function fitDistance(rows, labels, classes, breathe) {
  const d = rows[0].length;
  const n = rows.length;
  const counts = new Float64Array(classes);
  const means = new Float64Array(classes * d);
  rows.forEach((row, i) => {
    counts[labels[i]] += 1;
    for (let j = 0; j < d; j += 1) means[labels[i] * d + j] += row[j];
  });
  for (let k = 0; k < classes; k += 1) {
    for (let j = 0; j < d; j += 1) means[k * d + j] /= Math.max(counts[k], 1);
  }
  const covariance = new Float64Array(d * d);
  const rest = new Float64Array(d);
  let fourth = 0;
  for (let i = 0; i < n; i += 1) {
    if (i % 16 === 0) await breathe();
    let squares = 0;
    for (let j = 0; j < d; j += 1) {
      rest[j] = rows[i][j] - means[labels[i] * d + j];
      squares += rest[j] * rest[j];
    }
    fourth += squares * squares;
    for (let a = 0; a < d; a += 1) {
      const value = rest[a] / n;
      if (value === 0) continue;
      for (let b = 0; b <= a; b += 1) covariance[a * d + b] += value * rest[b];
    }
  }
  let trace = 0;
  let squared = 0;
  for (let a = 0; a < d; a += 1) {
    trace += covariance[a * d + a];
    squared += covariance[a * d + a] ** 2;
    for (let b = 0; b < a; b += 1) squared += 2 * covariance[a * d + b] ** 2;
  }
  const scale = trace / d;
  if (!(scale > 0)) return null; // all photos of a class are the same
  const spread = (squared - 2 * scale * trace + d * scale * scale) / d;
  const noise = Math.min((fourth / n - squared) / (d * n), spread);
  const shrinkage = noise > 0 ? noise / spread : 0;
  for (let a = 0; a < d; a += 1) {
    for (let b = 0; b < a; b += 1) covariance[a * d + b] *= 1 - shrinkage;
    covariance[a * d + a] = (1 - shrinkage) * covariance[a * d + a] + (shrinkage + 1e-6) * scale;
  }
  const factor = await cholesky(covariance, d, breathe);
  // Classes without a photo here (in a fold) are no neighbours.
  const present = [...counts.keys()].filter((k) => counts[k] > 0);
  const kept = new Float64Array(present.length * d);
  present.forEach((k, i) => kept.set(means.subarray(k * d, k * d + d), i * d));
  return { means: kept, whiten: await inverseTransposed(factor, d, breathe) };
}

/** {means, whiten, threshold}, or null if there are too few photos for it. */
export async function fitUnknown(rows, labels, classes, { folds, of }, breathe) {
  if (rows.length < FEWEST || folds < 2 || rows[0].length > MOST_FEATURES) return null;
  const distances = [];
  for (let fold = 0; fold < folds; fold += 1) {
    const kept = [...rows.keys()].filter((i) => of[i] !== fold);
    const pick = (list) => kept.map((i) => list[i]);
    const fitted = await fitDistance(pick(rows), pick(labels), classes, breathe);
    if (!fitted) return null;
    const distance = new Distance(fitted.means, fitted.whiten);
    for (let i = 0; i < rows.length; i += 1) {
      if (of[i] !== fold) continue;
      await breathe();
      distances.push(distance.of(rows[i]));
    }
  }
  if (distances.length < FEWEST) return null;
  const all = await fitDistance(rows, labels, classes, breathe);
  return all && { ...all, threshold: quantile(distances, KNOWN) };
}

/** Between two values, in proportion, as numpy does. */
export function quantile(values, share) {
  const sorted = Float64Array.from(values).sort();
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (place - low) * (sorted[high] - sorted[low]);
}
