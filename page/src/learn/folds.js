// Which photos are held out together.

/** The same numbers in every page (mulberry32). */
export function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function shuffled(list, random) {
  const copy = list.slice();
  for (let i = copy.length - 1; i > 0; i -= 1) {
    const j = Math.floor(random() * (i + 1));
    [copy[i], copy[j]] = [copy[j], copy[i]];
  }
  return copy;
}

/**
 * Up to five folds with an equal share of every class: {folds, of}, where `of[i]` is the fold of
 * photo i, or -1 if it is the only one of its class and is never held out. `folds` is 0 if no class
 * has two photos.
 */
export function stratifiedFolds(labels, classes) {
  const random = randomNumbers(labels.length);
  const members = Array.from({ length: classes }, () => []);
  labels.forEach((label, i) => members[label].push(i));
  const usable = members.filter((list) => list.length >= 2);
  const of = new Int32Array(labels.length).fill(-1);
  if (usable.length === 0) return { folds: 0, of };
  const folds = Math.min(5, ...usable.map((list) => list.length));
  let next = 0;
  for (const list of usable) {
    for (const i of shuffled(list, random)) {
      of[i] = next % folds;
      next += 1;
    }
  }
  return { folds, of };
}
