/** The lower Cholesky factor of a positive definite matrix (d x d). */
export async function cholesky(matrix, d, breathe) {
  const l = new Float64Array(d * d);
  for (let i = 0; i < d; i += 1) {
    if (i % 32 === 0) await breathe();
    for (let j = 0; j <= i; j += 1) {
      let sum = matrix[i * d + j];
      for (let k = 0; k < j; k += 1) sum -= l[i * d + k] * l[j * d + k];
      l[i * d + j] = i === j ? Math.sqrt(Math.max(sum, Number.MIN_VALUE)) : sum / l[j * d + j];
    }
  }
  return l;
}

/** The transposed inverse of a lower triangular matrix: upper triangular. */
export async function inverseTransposed(l, d, breathe) {
  const inverse = new Float64Array(d * d); // its row j is column j of the inverse of l
  for (let j = 0; j < d; j += 1) {
    if (j % 32 === 0) await breathe();
    const row = j * d;
    inverse[row + j] = 1 / l[row + j];
    for (let i = j + 1; i < d; i += 1) {
      let sum = 0;
      for (let k = j; k < i; k += 1) sum -= l[i * d + k] * inverse[row + k];
      inverse[row + i] = sum / l[i * d + i];
    }
  }
  return inverse;
}
