// L-BFGS (Nocedal and Wright, Numerical Optimization, algorithm 7.5) for smooth convex functions.

const MEMORY = 12;

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
  return sum;
}

const largest = (a) => a.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

/**
 * Minimize from `start`, in place, until no part of the gradient exceeds `tolerance`.
 *
 * `evaluate(x, gradient)` fills the gradient and returns the value. `breathe` is awaited between
 * steps: it lets other messages in, and throws where the result is no longer wanted.
 */
export async function minimize(evaluate, start, { tolerance, steps, breathe }) {
  const size = start.length;
  let x = start;
  let gradient = new Float64Array(size);
  let value = evaluate(x, gradient);
  const pairs = [];
  for (let step = 0; step < steps && largest(gradient) > tolerance; step += 1) {
    await breathe();
    const direction = towards(gradient, pairs);
    const slope = dot(direction, gradient);
    const first = pairs.length ? 1 : Math.min(1, 1 / Math.sqrt(dot(gradient, gradient)));
    const found = search(evaluate, x, value, direction, slope, first);
    if (!found) {
      if (pairs.length === 0) break; // as near as the numbers' precision lets us come
      pairs.length = 0;
      continue;
    }
    const s = new Float64Array(size);
    const y = new Float64Array(size);
    for (let i = 0; i < size; i += 1) {
      s[i] = found.x[i] - x[i];
      y[i] = found.gradient[i] - gradient[i];
    }
    const curvature = dot(s, y);
    if (curvature > 1e-300) {
      pairs.push({ s, y, rho: 1 / curvature });
      if (pairs.length > MEMORY) pairs.shift();
    }
    ({ x, value, gradient } = found);
  }
  return x;
}

/** The direction of descent: minus the gradient times an estimate of the inverse Hessian. */
function towards(gradient, pairs) {
  const q = Float64Array.from(gradient, (part) => -part);
  const shares = [];
  for (let i = pairs.length - 1; i >= 0; i -= 1) {
    const { s, y, rho } = pairs[i];
    shares[i] = rho * dot(s, q);
    for (let j = 0; j < q.length; j += 1) q[j] -= shares[i] * y[j];
  }
  if (pairs.length) {
    const { y, rho } = pairs[pairs.length - 1];
    const scale = 1 / (rho * dot(y, y));
    for (let j = 0; j < q.length; j += 1) q[j] *= scale;
  }
  for (let i = 0; i < pairs.length; i += 1) {
    const { s, y, rho } = pairs[i];
    const share = shares[i] - rho * dot(y, q);
    for (let j = 0; j < q.length; j += 1) q[j] += share * s[j];
  }
  return q;
}

/** A point that meets the weak Wolfe conditions, by doubling and halving; null if there is none. */
function search(evaluate, x, value, direction, slope, first) {
  if (!(slope < 0)) return null;
  let [low, high, length] = [0, Infinity, first];
  for (let trial = 0; trial < 40; trial += 1) {
    const next = x.map((part, i) => part + length * direction[i]);
    const gradient = new Float64Array(x.length);
    const reached = evaluate(next, gradient);
    if (!(reached <= value + 1e-4 * length * slope)) high = length;
    else if (dot(gradient, direction) < 0.9 * slope) low = length;
    else return { x: next, value: reached, gradient };
    length = high === Infinity ? 2 * low : (low + high) / 2;
  }
  return null;
}
