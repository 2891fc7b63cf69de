// What can be changed, and undone: classes with their photos, and an opened head.

/** States are never changed in place: a change makes a new one, so that undo is a step back. */
export class History {
  constructor(state, listen) {
    this.past = [];
    this.future = [];
    this.state = state;
    this.listen = listen;
  }

  /** Go to a new state. `label` says what was done, for "Undo". */
  change(state, label) {
    this.past.push({ state: this.state, label });
    this.future = [];
    this.state = state;
    this.listen();
  }

  undo() {
    const last = this.past.pop();
    if (!last) return null;
    this.future.push({ state: this.state, label: last.label });
    this.state = last.state;
    this.listen();
    return last.label;
  }

  redo() {
    const next = this.future.pop();
    if (!next) return null;
    this.past.push({ state: this.state, label: next.label });
    this.state = next.state;
    this.listen();
    return next.label;
  }
}

let lastNumber = 0;

/** A number that no other class or photo has. */
export const newNumber = () => (lastNumber += 1);

export const newClass = (name, photos = []) => ({ id: newNumber(), name, photos });

export const withClasses = (state, classes) => ({ ...state, classes });

export const changedClass = (state, id, change) =>
  withClasses(state, state.classes.map((one) => (one.id === id ? { ...one, ...change(one) } : one)));

/** "Class 3": the first name of this kind that is free. */
export function freeName(classes) {
  const names = new Set(classes.map((one) => one.name));
  let number = classes.length + 1;
  while (names.has(`Class ${number}`)) number += 1;
  return `Class ${number}`;
}

/** Photos added to classes by name; classes that are missing are made: [{name, photos}]. */
export function withGroups(state, groups) {
  let classes = state.classes;
  for (const { name, photos } of groups) {
    if (photos.length === 0) continue;
    if (classes.some((one) => one.name === name)) {
      classes = classes.map((one) => (one.name === name ? { ...one, photos: [...one.photos, ...photos] } : one));
    } else {
      classes = [...classes, newClass(name, photos)];
    }
  }
  // Classes that were only offered make room.
  const offered = (one) => /^Class \d+$/.test(one.name) && one.photos.length === 0;
  const named = new Set(groups.map((group) => group.name));
  return withClasses(state, classes.filter((one) => !offered(one) || named.has(one.name)));
}

export const photosOf = (state) => state.classes.flatMap((one) => one.photos);
