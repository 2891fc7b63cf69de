// The page's state and everything that changes it. Views are told by `changed`.

import { openArchive, photoEntries } from "./files/archive.js";
import { encodeText, fromBase64 } from "./files/bytes.js";
import { Head, readHead } from "./files/head.js";
import { Refused } from "./files/refused.js";
import { sha256 } from "./files/sha256.js";
import { Unknown, readUnknown } from "./files/unknown.js";
import { writeZip } from "./files/zip.js";
import { Learner } from "./learner.js";
import {
  History, changedClass, freeName, newClass, newNumber, photosOf, withClasses, withGroups,
} from "./state.js";
import { counted } from "./view/dom.js";

export class App {
  /** `given` is the JSON that Python puts into the page; `tell(text, options)` shows a message. */
  constructor({ workerSource, wasm, changed, tell }) {
    Object.assign(this, { wasm, changed, tell });
    this.photos = new Map(); // by number; kept for undo
    this.model = null;
    this.encoderBytes = null;
    this.isReady = false;
    this.starting = null;
    this.fitted = null; // {ids, weight, bias, measured, folds, curve, unknown}
    this.fitting = null; // the share that is done, or null
    this.fitKey = "";
    this.reading = null; // {done, all}
    this.savedKey = "";
    this.history = new History({ classes: [newClass("Class 1"), newClass("Class 2")], opened: null }, () => this.update());
    this.learner = new Learner(workerSource, (event) => this.hear(event));
  }

  get state() {
    return this.history.state;
  }

  // The model of the page.

  /** Start with {model, encoder, head, unknown}, the last three as bytes (or null). */
  async start({ model, encoder, head, unknown }) {
    if (model?.format !== "repper-model-1" || !encoder) {
      throw new Refused("This page holds no model that it can open.");
    }
    const { size, channels } = model.input;
    await this.learner.ask("start", {
      wasm: this.wasm, bytes: encoder, checksum: model.encoder.sha256, size, channels, width: model.encoder.features,
    });
    this.model = model;
    this.encoderBytes = encoder;
    this.isReady = true;
    const opened = this.checked(head, unknown);
    if (opened) {
      const classes = opened.head.names.map((name) => newClass(name));
      this.history.state = { classes, opened };
      this.savedKey = this.contentKey();
    }
    this.update();
  }

  async startGiven(given) {
    const bytes = (text) => (text ? fromBase64(text) : null);
    this.starting = this.start({
      model: given.model, encoder: bytes(given.encoder), head: bytes(given.head), unknown: bytes(given.unknown),
    });
    await this.starting;
  }

  /** Resolves when the encoder has started: photos that come earlier wait for it. */
  async ready() {
    if (!this.isReady) await this.starting;
    if (!this.isReady) throw new Refused("This page holds no encoder yet: open a zip file of a whole model first.");
  }

  /** A head and the rule for unknown photos from bytes, checked; null without a head. */
  checked(headBytes, unknownBytes) {
    if (!headBytes) return null;
    const { digest, features } = this.model.encoder;
    const head = readHead(headBytes, digest, features);
    return { head, unknown: unknownBytes ? readUnknown(unknownBytes, digest, features) : null };
  }

  // Classes and photos.

  addClass() {
    const one = newClass(freeName(this.state.classes));
    this.history.change(withClasses(this.state, [...this.state.classes, one]), `Added ${one.name}`);
    return one.id;
  }

  /** Rename a class, unless the name is empty or taken; the name that it has then. */
  rename(id, text) {
    const name = text.trim().normalize("NFC");
    const one = this.classOf(id);
    if (name === one.name) return name;
    const problem = !name
      ? "A class needs a name."
      : this.state.classes.some((other) => other.id !== id && other.name === name)
        ? `There is already a class named ${name}.`
        : null;
    if (problem) {
      this.tell(problem, { bad: true });
      return one.name;
    }
    this.history.change(changedClass(this.state, id, () => ({ name })), `Renamed ${one.name} to ${name}`);
    return name;
  }

  removeClass(id) {
    const one = this.classOf(id);
    this.history.change(withClasses(this.state, this.state.classes.filter((other) => other.id !== id)), `Deleted ${one.name}`);
    this.tell(`Deleted ${one.name}.`, { action: ["Undo", () => this.undo()] });
  }

  removePhoto(photo) {
    const one = this.state.classes.find((other) => other.photos.includes(photo));
    const without = changedClass(this.state, one.id, ({ photos }) => ({ photos: photos.filter((id) => id !== photo) }));
    this.history.change(without, `Removed ${this.photos.get(photo).name}`);
  }

  async addToClass(id, files) {
    const one = this.classOf(id);
    const [group] = await this.readGroups([{ name: one.name, files, known: one.photos }]);
    if (group.photos.length === 0) return;
    const still = this.state.classes.some((other) => other.id === id);
    const next = still
      ? changedClass(this.state, id, ({ photos }) => ({ photos: [...photos, ...group.photos] }))
      : withGroups(this.state, [group]);
    this.grow(next, `Added ${counted(group.photos.length, "photo")} to ${one.name}`);
  }

  async addGroups(groups) {
    const known = (name) => this.state.classes.find((one) => one.name === name)?.photos ?? [];
    const read = await this.readGroups(groups.map((group) => ({ ...group, known: known(group.name) })));
    const count = read.reduce((sum, group) => sum + group.photos.length, 0);
    if (count > 0) this.grow(withGroups(this.state, read), `Added ${counted(count, "photo")}`);
  }

  /** Change to a state with more photos; the first ones end what an opened head knew. */
  grow(next, label) {
    const first = photosOf(this.state).length === 0;
    this.history.change(next, label);
    if (first && this.state.opened) {
      this.tell(
        "From now on it learns from your photos only: nothing of the opened head is mixed in. " +
          "The opened head still answers until two classes have photos.",
      );
    }
  }

  /** Read files of groups [{name, files, known}] one after the other: [{name, photos}]. */
  async readGroups(groups) {
    await this.ready();
    const all = groups.reduce((sum, group) => sum + group.files.length, 0);
    const progress = this.reading ?? { done: 0, all: 0 };
    progress.all += all;
    this.reading = progress;
    this.changed();
    const unreadable = [];
    let copies = 0;
    const result = [];
    for (const { name, files, known } of groups) {
      const digests = new Set(known.map((id) => this.photos.get(id).digest));
      const photos = [];
      for (const given of files) {
        const id = newNumber();
        let fileName = given.name;
        try {
          const file = typeof given === "function" ? await given() : given;
          fileName = file.name;
          const { thumb, digest } = await this.learner.ask("read", { id, blob: file });
          if (digests.has(digest)) {
            copies += 1;
          } else {
            digests.add(digest);
            this.photos.set(id, { name: file.name, blob: file, digest, address: URL.createObjectURL(thumb) });
            photos.push(id);
          }
        } catch {
          unreadable.push(fileName);
        }
        progress.done += 1;
        this.changed();
      }
      result.push({ name, photos });
    }
    if (progress.done === progress.all) this.reading = null;
    this.changed();
    if (unreadable.length) {
      const names = unreadable.slice(0, 3).join(", ") + (unreadable.length > 3 ? ", …" : "");
      this.tell(`${counted(unreadable.length, "file")} could not be read as a picture: ${names}. JPEG and PNG always work.`, { bad: true });
    }
    if (copies) this.tell(`${counted(copies, "photo")} skipped: already in this class.`);
    return result;
  }

  classOf(id) {
    return this.state.classes.find((one) => one.id === id);
  }

  /** Names of photos that are in more than one class. */
  sharedPhotos() {
    const seen = new Map();
    const shared = new Set();
    for (const one of this.state.classes) {
      for (const id of one.photos) {
        const { digest, name } = this.photos.get(id);
        if (seen.has(digest) && seen.get(digest) !== one.id) shared.add(name);
        seen.set(digest, one.id);
      }
    }
    return [...shared];
  }

  undo() {
    const label = this.history.undo();
    if (label) this.tell(`Undone: ${label}.`, { action: ["Redo", () => this.redo()] });
  }

  redo() {
    const label = this.history.redo();
    if (label) this.tell(`Redone: ${label}.`, { action: ["Undo", () => this.undo()] });
  }

  // Fitting.

  update() {
    const filled = this.state.classes.filter((one) => one.photos.length > 0);
    const key = JSON.stringify(filled.map((one) => [one.id, one.photos]));
    if (this.isReady && key !== this.fitKey) {
      this.fitKey = key;
      if (filled.length >= 2) {
        this.fitting = 0;
        this.pending = filled.map((one) => one.id);
        this.learner.fit(filled.map((one) => one.photos));
      } else {
        this.learner.stop();
        this.fitting = null;
        this.fitted = null;
      }
    }
    this.changed();
  }

  hear({ event, ...rest }) {
    if (event === "broken") {
      this.fitting = null;
      this.tell(`Something went wrong: ${rest.error}`, { bad: true });
    } else if (event === "head") {
      this.fitted = { ids: this.pending, weight: rest.weight, bias: rest.bias, unknown: null, milliseconds: rest.milliseconds };
      this.fitting = 0.2;
    } else if (event === "measured") {
      Object.assign(this.fitted, { measured: rest.measured, folds: rest.folds });
    } else if (event === "unknown") {
      const found = rest.unknown;
      this.fitted.unknown = found && Unknown.of(found.means, found.whiten, found.threshold, this.model.encoder.digest);
      this.fitting = 0.75;
    } else if (event === "curve") {
      this.fitted.curve = rest.curve;
      this.fitting = null;
    } else if (event === "progress") {
      this.fitting = rest.share;
    }
    this.changed();
  }

  /** The head in use, with the rule for unknown photos: {head, unknown, places}, or null. */
  inUse() {
    if (!this.isReady) return null;
    const { classes, opened } = this.state;
    if (this.fitted) {
      const { ids, weight, bias, unknown } = this.fitted;
      const names = ids.map((id) => this.classOf(id)?.name ?? "(deleted)");
      const head = Head.linear(names, weight, bias, this.model.encoder.digest);
      return { head, unknown, places: ids.map((id) => Math.max(0, classes.findIndex((one) => one.id === id))) };
    }
    if (this.fitting !== null || !opened) return null;
    return { ...opened, places: opened.head.names.map((_, place) => place) };
  }

  // Files.

  /** Resolves when the latest photos are learned, rule for unknown and curve included. */
  async settled() {
    while (this.fitting !== null || this.reading) await new Promise((resolve) => setTimeout(resolve, 50));
  }

  async saveHead() {
    await this.settled();
    const found = this.inUse();
    if (!found) throw new Refused("There is nothing learned yet: add photos of at least two classes.");
    return new Blob([found.head.bytes()]);
  }

  async saveUnknown() {
    await this.settled();
    const found = this.inUse();
    if (!found?.unknown) throw new Refused("There is no rule for unknown photos yet: it needs at least 10 photos, two of each class.");
    return new Blob([found.unknown.bytes()]);
  }

  async savePhotos() {
    const { entries } = photoEntries(this.state.classes, this.photos);
    if (entries.length === 0) throw new Refused("There are no photos yet.");
    return writeZip(entries);
  }

  async saveAll() {
    await this.settled();
    const found = this.inUse();
    const { entries, renamed } = photoEntries(this.state.classes, this.photos, "photos/");
    const measured = this.fitted?.measured;
    const head = found?.head ?? null;
    const unknown = found?.unknown ?? null;
    const model = {
      ...this.model,
      classes: head ? head.names : null,
      encoder: { ...this.model.encoder, file: "encoder.onnx", sha256: this.model.encoder.sha256 ?? sha256(this.encoderBytes) },
      head: head && { file: "head.safetensors", kind: head.kind, digest: head.digest() },
      unknown: unknown && { file: "unknown.safetensors", threshold: unknown.threshold },
      scores: this.fitted
        ? measured && { accuracy: measured.correct / measured.tested, photos: measured.tested, folds: this.fitted.folds }
        : (this.model.scores ?? null),
    };
    delete model.folders;
    delete model.seal; // it is that of the file that was read
    if (Object.keys(renamed).length) model.folders = renamed;
    const blob = (part) => new Blob([part]);
    const files = [
      { name: "model.json", blob: blob(encodeText(`${JSON.stringify(model, null, 2)}\n`)) },
      { name: "encoder.onnx", blob: blob(this.encoderBytes) },
    ];
    if (head) files.push({ name: "head.safetensors", blob: blob(head.bytes()) });
    if (unknown) files.push({ name: "unknown.safetensors", blob: blob(unknown.bytes()) });
    const zip = await writeZip([...files, ...entries]);
    this.savedKey = this.contentKey();
    return zip;
  }

  /** Open a head, a rule for unknown photos, or a zip with a model or photos. */
  async open(file) {
    const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
    const isZip = start[0] === 0x50 && start[1] === 0x4b;
    if (isZip) return this.openZip(file);
    await this.ready();
    const bytes = new Uint8Array(await file.arrayBuffer());
    if (file.name.startsWith("unknown")) {
      const { digest, features } = this.model.encoder;
      const unknown = readUnknown(bytes, digest, features);
      const { opened } = this.state;
      if (!opened || photosOf(this.state).length) throw new Refused("Open a head first: the rule for unknown photos belongs to one.");
      return this.history.change({ ...this.state, opened: { ...opened, unknown } }, `Opened ${file.name}`);
    }
    return this.useOpened(this.checked(bytes, null), file.name);
  }

  /** Answer with an opened head from now on; photos that are there make way, and undo brings them back. */
  useOpened(opened, name) {
    const had = photosOf(this.state).length;
    const classes = opened.head.names.map((one) => newClass(one));
    this.history.change({ classes, opened }, `Opened ${name}`);
    const about = `It can tell apart: ${opened.head.names.join(", ")}.`;
    const action = ["Undo", () => this.undo()];
    this.tell(`Opened ${name}. ${about}${had ? " Your photos were put aside." : ""}`, { action });
  }

  async openZip(file) {
    const { model, encoder, head, unknown, photos } = await openArchive(file);
    await this.starting?.catch(() => {}); // a page without an encoder that works takes the archive's
    if (!this.isReady) {
      if (!model || !encoder) throw new Refused("This page holds no encoder yet: open a zip file of a whole model first.");
      await this.start({ model, encoder, head, unknown });
      if (photos.length) await this.addGroups(photos);
      return;
    }
    const fits = !model || model.encoder?.digest === this.model.encoder.digest;
    if (!fits && photos.length === 0) {
      throw new Refused(
        `This file was made with encoder ${String(model.encoder?.digest).slice(0, 12)}, not with this page's ` +
          `encoder ${this.model.encoder.digest.slice(0, 12)}: open it in its own page.`,
      );
    }
    const opened = fits ? this.checked(head, unknown) : null;
    if (photos.length === 0) {
      if (!opened) throw new Refused("The archive holds neither a head nor photos.");
      this.useOpened(opened, file.name);
      return;
    }
    const read = await this.readGroups(photos.map((group) => ({ ...group, known: [] })));
    if (!read.some((group) => group.photos.length)) throw new Refused("None of the photos in the archive can be read.");
    // A file that brings a model replaces what is here; photos alone are added to it.
    const before = model ? { classes: [], opened } : this.state;
    const isNew = photosOf(this.state).length === 0;
    this.history.change(withGroups(before, read), `Opened ${file.name}`);
    if (isNew) this.savedKey = this.contentKey();
    const count = read.reduce((sum, group) => sum + group.photos.length, 0);
    const other = fits ? "" : " Its head belongs to another encoder and was left out.";
    this.tell(`Opened ${counted(count, "photo")} from ${file.name}.${other}`, { action: ["Undo", () => this.undo()] });
  }

  contentKey() {
    return JSON.stringify([this.state.classes.map((one) => [one.name, one.photos])]);
  }

  get hasUnsaved() {
    return photosOf(this.state).length > 0 && this.contentKey() !== this.savedKey;
  }
}
