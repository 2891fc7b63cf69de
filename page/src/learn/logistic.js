// Logistic regression with scikit-learn's objective, C times the sum of cross-entropies plus half the
// squared weights; the bias is free. Two classes have one row of weights, the second one's.

import { minimize } from "./lbfgs.js";

const C = 1;

/**
 * Weights (classes x features) and biases, where `rows` are features of equal length and `labels`
 * are 0 to classes - 1. `start` may be an earlier result.
 */
export async function fitLogistic(rows, labels, classes, breathe, start = null) {
  const d = rows[0].length;
  const n = rows.length;
  const mean = new Float64Array(d);
  for (const row of rows) for (let j = 0; j < d; j += 1) mean[j] += row[j] / n;
  // The bias is free, so moving the features changes nothing but the speed.
  const x = new Float64Array(n * d);
  rows.forEach((row, i) => {
    for (let j = 0; j < d; j += 1) x[i * d + j] = row[j] - mean[j];
  });
  const sets = classes === 2 ? 1 : classes; // rows of weights that are fitted
  const skipped = classes - sets;
  const point = new Float64Array(sets * (d + 1));
  if (start) {
    for (let k = 0; k < sets; k += 1) {
      const from = (k + skipped) * d;
      let bias = start.bias[k + skipped];
      for (let j = 0; j < d; j += 1) {
        point[k * d + j] = start.weight[from + j];
        bias += start.weight[from + j] * mean[j];
      }
      point[sets * d + k] = bias;
    }
  }

  const scores = new Float64Array(classes);
  const evaluate = (at, gradient) => {
    let value = 0;
    for (let i = 0; i < sets * d; i += 1) {
      value += 0.5 * at[i] * at[i];
      gradient[i] = at[i];
    }
    gradient.fill(0, sets * d);
    for (let i = 0; i < n; i += 1) {
      const base = i * d;
      let most = skipped ? 0 : -Infinity;
      for (let k = 0; k < sets; k += 1) {
        let sum = at[sets * d + k];
        const row = k * d;
        for (let j = 0; j < d; j += 1) sum += x[base + j] * at[row + j];
        scores[k + skipped] = sum;
        if (sum > most) most = sum;
      }
      if (skipped) scores[0] = 0;
      let total = 0;
      const own = scores[labels[i]];
      for (let k = 0; k < classes; k += 1) {
        scores[k] = Math.exp(scores[k] - most);
        total += scores[k];
      }
      value += C * (Math.log(total) + most - own);
      for (let k = 0; k < sets; k += 1) {
        const error = C * (scores[k + skipped] / total - (labels[i] === k + skipped ? 1 : 0));
        if (Math.abs(error) < 1e-14) continue;
        const row = k * d;
        for (let j = 0; j < d; j += 1) gradient[row + j] += error * x[base + j];
        gradient[sets * d + k] += error;
      }
    }
    return value;
  };

  const best = await minimize(evaluate, point, { tolerance: 1e-5, steps: 3000, breathe });
  const weight = new Float64Array(classes * d);
  const bias = new Float64Array(classes);
  for (let k = 0; k < sets; k += 1) {
    let own = best[sets * d + k];
    for (let j = 0; j < d; j += 1) {
      weight[(k + skipped) * d + j] = best[k * d + j];
      own -= best[k * d + j] * mean[j];
    }
    bias[k + skipped] = own;
  }
  return { weight, bias };
}

/** The class with the largest score. */
export function answer({ weight, bias }, row) {
  const d = row.length;
  let [best, most] = [0, -Infinity];
  for (let k = 0; k < bias.length; k += 1) {
    let score = bias[k];
    for (let j = 0; j < d; j += 1) score += weight[k * d + j] * row[j];
    if (score > most) [best, most] = [k, score];
  }
  return best;
}
