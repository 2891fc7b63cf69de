// Ties the page's buttons, drops and keys to the app, and shows its state.

import { App } from "./app.js";
import { decodeText, fromBase64, inflate } from "./files/bytes.js";
import { Refused } from "./files/refused.js";
import { FEWEST, MOST_FEATURES } from "./learn/unknown.js";
import { fitted } from "./pixels/read_image.js";
import { photosOf } from "./state.js";
import { Camera } from "./view/camera.js";
import { ClassesView } from "./view/classes.js";
import { counted, find, say } from "./view/dom.js";
import { byFolder, choose, dropped, isFolderOfClasses, isPicture } from "./view/picked.js";
import { showQuality, showWarnings, warningsOf } from "./view/quality.js";
import { toast } from "./view/toasts.js";
import { AnswerView } from "./view/try.js";

const LIVE = 200; // milliseconds between two answers to the camera
const IMAGES = "image/*";
const given = JSON.parse(find("model").textContent);

const app = new App({
  workerSource: find("worker").textContent,
  wasm: find("wasm").textContent,
  changed: () => schedule(),
  tell: toast,
});

/** Run what may be refused, and say so in one sentence. */
const attempt = (run) => async (...rest) => {
  try {
    return await run(...rest);
  } catch (error) {
    toast(error instanceof Refused ? error.message : `Something went wrong: ${error.message}`, { bad: true });
    return undefined;
  }
};

// Showing.

const answers = new AnswerView();
const classes = new ClassesView(app.photos, {
  rename: (id, name) => app.rename(id, name),
  remove: (id) => {
    app.removeClass(id);
    find("add-class").focus();
  },
  removePhoto: (id) => app.removePhoto(id),
  addFiles: attempt(async (id) => addToClass(id, await choose({ multiple: true, accept: IMAGES }))),
  addFolder: attempt(async (id) => addToClass(id, await choose({ folder: true }))),
  useCamera: (id) => openCamera(id),
});
const tried = { features: null, count: 0 };
let shownState = null;
let isScheduled = false;

function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  queueMicrotask(() => {
    isScheduled = false;
    show();
  });
}

function show() {
  const { state, history } = app;
  if (state !== shownState) {
    classes.show(state);
    shownState = state;
  }
  const last = history.past.at(-1)?.label;
  const next = history.future.at(-1)?.label;
  find("undo").disabled = !last;
  find("redo").disabled = !next;
  find("undo").title = last ? `Undo: ${last}` : "";
  find("redo").title = next ? `Redo: ${next}` : "";
  showStatus();
  showAnswer();
  if (app.model) showFacts();
  const result = app.fitted && { ...app.fitted, names: app.fitted.ids.map((id) => app.classOf(id)?.name ?? "") };
  showQuality(result?.measured ? result : null, waitingFor());
  showWarnings(warningsOf(state, app.sharedPhotos()));
  const canSave = app.isReady && !app.reading;
  find("save-all").disabled = !canSave;
  find("save-head").disabled = !canSave || (!app.inUse() && app.fitting === null);
  find("save-unknown").disabled = !canSave || (!app.inUse()?.unknown && app.fitting === null);
  find("save-photos").disabled = !canSave || photosOf(state).length === 0;
}

function waitingFor() {
  const { opened } = app.state;
  const photos = photosOf(app.state).length;
  if (app.fitting !== null) return "Measuring…";
  if (app.fitted) return "Add a second photo to each class: only then can some be held out and tested.";
  if (opened && photos === 0) return "The opened head was not measured here. Add photos to measure one of your own.";
  return "Measured on photos that are held out, as soon as two classes have photos.";
}

function showStatus() {
  const bar = find("status-bar");
  const { reading, fitting, fitted: found, state } = app;
  let text = "Add photos of at least two classes.";
  let share = null;
  if (!app.isReady) {
    text = find("status").dataset.problem ?? "Starting the encoder…";
    share = find("status").dataset.problem ? null : undefined;
  } else if (reading) {
    text = `Reading photo ${Math.min(reading.done + 1, reading.all)} of ${reading.all}…`;
    share = reading.done / reading.all;
  } else if (fitting !== null) {
    text = fitting < 0.2 ? "Learning…" : "Learned. Measuring how good it is…";
    share = fitting;
  } else if (found) {
    text = `Ready. Learned from ${counted(photosOf(state).length, "photo")} of ${found.ids.length} classes.`;
  } else if (state.opened) {
    text = "Ready. It answers with the opened head: try a photo.";
  }
  // Counting aloud would be noise: a screen reader hears of the beginning and the end.
  find("status-text").setAttribute("aria-live", reading && reading.done > 0 ? "off" : "polite");
  say(find("status-text"), text);
  bar.classList.toggle("rest", share === null);
  if (share === undefined) bar.removeAttribute("value");
  else bar.value = share ?? 0;
  bar.setAttribute("aria-hidden", String(share === null));
}

function showAnswer() {
  const found = app.inUse();
  const box = find("use-unknown");
  const rule = found?.unknown ?? null;
  box.disabled = !rule;
  say(find("unknown-note"), rule || !found ? "" : whyNoRule());
  answers.show(found?.head, box.checked ? rule : null, tried.features, found?.places);
}

function whyNoRule() {
  if (app.fitting !== null) return "(being fitted)";
  if (!app.fitted) return "(off: the opened head brings no rule for it)";
  if (app.model.encoder.features > MOST_FEATURES) return "(off: this encoder has too many features for it)";
  return `(off: it needs at least ${FEWEST} different photos, two or more of each class)`;
}

// Adding photos.

function addToClass(id, files) {
  if (files.length === 0) return undefined;
  if (isFolderOfClasses(files)) return app.addGroups(byFolder(files));
  const pictures = files.some(({ path }) => path.includes("/")) ? files.filter(isPicture) : files;
  if (pictures.length === 0) throw new Refused("There are no pictures in this folder.");
  return app.addToClass(id, pictures.map(({ file }) => file));
}

find("add-class").onclick = () => {
  const id = app.addClass();
  queueMicrotask(() => classes.focusName(id));
};
find("add-folders").onclick = attempt(async () => {
  const files = await choose({ folder: true });
  const groups = byFolder(files);
  if (files.length && !groups.length) throw new Refused("There are no pictures in this folder.");
  await app.addGroups(groups);
});

const accepts = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
let target = null;
function mark(element) {
  target?.classList.remove("over");
  target = element;
  target?.classList.add("over");
}

addEventListener("dragover", (event) => {
  if (!accepts(event)) return;
  event.preventDefault();
  find("drop-veil").hidden = false;
  const near = event.target.closest?.(".class, #try");
  mark(near?.id === "try" ? find("stage") : (near ?? null));
});
addEventListener("dragleave", (event) => {
  if (event.relatedTarget) return;
  find("drop-veil").hidden = true;
  mark(null);
});
addEventListener("drop", attempt(async (event) => {
  if (!accepts(event)) return;
  event.preventDefault();
  find("drop-veil").hidden = true;
  const near = event.target.closest?.(".class, #try");
  mark(null);
  const files = await dropped(event.dataTransfer);
  if (files.length === 0) return;
  if (files.length === 1 && /\.(zip|safetensors)$/i.test(files[0].file.name)) await app.open(files[0].file);
  else if (near?.id === "try") await tryFile(files[0].file);
  else if (near) await addToClass(Number(near.dataset.id), files);
  else if (files.some(({ path }) => path.includes("/"))) await app.addGroups(byFolder(files));
  else throw new Refused("Drop photos on the class they belong to, or on “Try it”.");
}));

addEventListener("paste", attempt(async (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length === 0) return;
  event.preventDefault();
  const id = classes.current();
  if (id === null) await tryFile(files[0]);
  else await addToClass(id, files.map((file) => ({ file, path: file.name })));
}));

// The camera for a class.

const camera = new Camera(find("camera-video"));
let cameraClass = null;
let taken = 0;

async function startCamera(run) {
  find("camera-take").disabled = true;
  say(find("camera-hint"), "Starting the camera…");
  try {
    find("camera-switch").hidden = !(await run());
    find("camera-take").disabled = false;
    find("camera-take").focus();
  } catch (error) {
    say(find("camera-hint"), error.message);
  }
}

function openCamera(id) {
  cameraClass = id;
  taken = 0;
  stopLive();
  say(find("camera-title"), `Photos of ${app.classOf(id).name}`);
  say(find("camera-count"), "Move a little between two photos: different views teach it more.");
  find("camera").showModal();
  startCamera(() => camera.open());
}

find("camera-take").onclick = attempt(async () => {
  const stamp = new Date().toISOString().replace(/[-:]/g, "").slice(0, 15);
  taken += 1;
  const file = await camera.photo(`camera-${stamp}-${String(taken).padStart(3, "0")}.jpg`);
  if (!file) return;
  await app.addToClass(cameraClass, [file]);
  say(find("camera-count"), `${counted(taken, "photo")} taken.`);
});
find("camera-switch").onclick = () => startCamera(() => camera.switch());
find("camera-close").onclick = () => find("camera").close();
find("camera").onclose = () => camera.close();

// Trying photos.

const live = new Camera(find("stage-video"));
let stageAddress = null;

const tryFile = attempt(async (file) => {
  await app.ready();
  stopLive();
  let read;
  try {
    read = await app.learner.ask("read", { blob: file });
  } catch {
    throw new Refused(`${file.name || "This"} could not be read as a picture. JPEG and PNG always work.`);
  }
  if (stageAddress) URL.revokeObjectURL(stageAddress);
  stageAddress = URL.createObjectURL(file);
  find("stage-image").src = stageAddress;
  find("stage-image").hidden = false;
  find("stage-hint").hidden = true;
  tried.features = read.features;
  tried.count += 1;
  show();
});

function stopLive() {
  if (!live.isOpen) return;
  live.close();
  find("stage-video").hidden = true;
  find("stage-hint").hidden = false;
  find("try-switch").hidden = true;
  say(find("try-camera"), "Camera");
  tried.features = null;
  show();
}

async function answerLive() {
  const { size, channels } = app.model.input;
  while (live.isOpen) {
    const frame = document.hidden ? null : live.frame();
    if (frame) {
      const pixels = fitted(frame.rgba, frame.width, frame.height, channels, size);
      const { features } = await app.learner.ask("encode", { pixels });
      if (!live.isOpen) return;
      tried.features = features;
      showAnswer();
    }
    await new Promise((resolve) => setTimeout(resolve, LIVE));
  }
}

find("try-file").onclick = attempt(async () => {
  const [one] = await choose({ accept: IMAGES });
  if (one) await tryFile(one.file);
});
find("try-camera").onclick = attempt(async () => {
  if (live.isOpen) {
    stopLive();
    return;
  }
  await app.ready();
  find("try-switch").hidden = !(await live.open());
  find("stage-image").hidden = true;
  find("stage-hint").hidden = true;
  find("stage-video").hidden = false;
  say(find("try-camera"), "Stop");
  attempt(answerLive)();
});
find("try-switch").onclick = attempt(() => live.switch());
find("use-unknown").onchange = () => showAnswer();

// Files.

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

const saving = (make, name) => attempt(async () => download(await make(), name));
find("save-all").onclick = saving(() => app.saveAll(), "model.zip");
find("save-head").onclick = saving(() => app.saveHead(), "head.safetensors");
find("save-unknown").onclick = saving(() => app.saveUnknown(), "unknown.safetensors");
find("save-photos").onclick = saving(() => app.savePhotos(), "photos.zip");
find("open").onclick = attempt(async () => {
  const [one] = await choose({ accept: ".zip,.safetensors" });
  if (one) await app.open(one.file);
});

// Undo, licences, leaving.

find("undo").onclick = () => app.undo();
find("redo").onclick = () => app.redo();
addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
  if (event.target.matches?.("input[type=text]") || find("camera").open) return;
  const key = event.key.toLowerCase();
  if (key === "z" && !event.shiftKey) app.undo();
  else if (key === "y" || (key === "z" && event.shiftKey)) app.redo();
  else return;
  event.preventDefault();
});

find("licences-open").onclick = () => find("licences").showModal();
find("licences-close").onclick = () => find("licences").close();
find("notices-details").ontoggle = async () => {
  const text = find("notices-text");
  if (!text.textContent) text.textContent = decodeText(await inflate(fromBase64(find("notices").textContent), "gzip"));
};
addEventListener("beforeunload", (event) => {
  if (app.hasUnsaved) event.preventDefault();
});

function showFacts() {
  const { encoder, input } = app.model;
  const facts = [
    `Encoder ${encoder.architecture ?? ""} (${encoder.precision ?? "fp32"}), ${counted(encoder.features, "feature")}`,
    `${input.size} × ${input.size} pixels in ${input.channels === 1 ? "grey" : "colour"}`,
    encoder.origin,
    `digest ${encoder.digest.slice(0, 12)}`,
  ];
  say(find("model-facts"), `${facts.filter(Boolean).join(" · ")}.`);
}

/** For tests, and for the curious in the browser's console. */
globalThis.repper = {
  app,
  tried,
  pixels: async (blob) => (await app.learner.ask("read", { blob })).pixels,
  features: async (blob) => (await app.learner.ask("read", { blob })).features,
};

show();
const begin = async () => {
  if (given === null) {
    find("status").dataset.problem = "This page holds no model: make it with `repper play`, or open a zip file of a whole model.";
    show();
    return;
  }
  try {
    if (!globalThis.DecompressionStream || !globalThis.OffscreenCanvas) {
      throw new Refused("This browser is too old for this page: use a version from 2023 or later.");
    }
    await app.startGiven(given);
  } catch (error) {
    find("status").dataset.problem = error.message;
    toast(error.message, { bad: true });
    show();
  }
};
begin();
