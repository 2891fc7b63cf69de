// How good the head is on photos it was not fitted on.

import { randomNumbers, shuffled } from "./folds.js";
import { answer, fitLogistic } from "./logistic.js";

/**
 * Cross-validation: {correct, tested, confusion}, rows of the confusion being true classes.
 *
 * With `share` below one only that share of each class's other photos is learned from.
 */
export async function heldOut(rows, labels, classes, { folds, of }, breathe, { start, share = 1, done } = {}) {
  const confusion = Array.from({ length: classes }, () => new Array(classes).fill(0));
  let [correct, tested, learned] = [0, 0, 0];
  for (let fold = 0; fold < folds; fold += 1) {
    const kept = part(labels, classes, [...rows.keys()].filter((i) => of[i] !== fold), share);
    learned += kept.length / folds;
    const present = [...new Set(kept.map((i) => labels[i]))].sort((a, b) => a - b);
    const pick = kept.map((i) => rows[i]);
    const fitted =
      present.length < 2
        ? null
        : await fitLogistic(
            pick, kept.map((i) => present.indexOf(labels[i])), present.length, breathe,
            present.length === classes ? start : null,
          );
    for (let i = 0; i < rows.length; i += 1) {
      if (of[i] !== fold) continue;
      const guess = fitted ? present[answer(fitted, rows[i])] : present[0];
      confusion[labels[i]][guess] += 1;
      correct += guess === labels[i] ? 1 : 0;
      tested += 1;
    }
    done?.((fold + 1) / folds);
  }
  return { correct, tested, confusion, learned: Math.round(learned) };
}

function part(labels, classes, rows, share) {
  if (share === 1) return rows;
  const random = randomNumbers(rows.length);
  const members = Array.from({ length: classes }, () => []);
  for (const i of rows) members[labels[i]].push(i);
  return members.flatMap((list) => shuffled(list, random).slice(0, Math.max(1, Math.round(share * list.length))));
}
