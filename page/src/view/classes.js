import { arrange, counted, find, make, say } from "./dom.js";

/** The list of classes. `actions` are rename, remove, removePhoto, addFiles, addFolder, useCamera, drop. */
export class ClassesView {
  constructor(photos, actions) {
    this.photos = photos; // by number
    this.actions = actions;
    this.cards = new Map();
    this.thumbs = new Map();
  }

  show(state) {
    const cards = state.classes.map((one, place) => {
      if (!this.cards.has(one.id)) this.cards.set(one.id, this.card(one.id));
      const card = this.cards.get(one.id);
      this.update(card, one, place);
      return card.element;
    });
    arrange(find("class-list"), cards);
  }

  /** The class that the keyboard is in, or null. */
  current() {
    const card = document.activeElement?.closest?.(".class");
    return card ? Number(card.dataset.id) : null;
  }

  focusName(id) {
    const { input } = this.cards.get(id);
    input.focus();
    input.select();
  }

  card(id) {
    const { actions } = this;
    const swatch = make("span", { "aria-hidden": "true" });
    const input = make("input", { type: "text", maxLength: 80, spellcheck: false, autocomplete: "off" });
    input.onchange = () => {
      input.value = actions.rename(id, input.value);
    };
    input.onkeydown = (event) => {
      if (event.key === "Enter") input.blur();
    };
    const count = make("span", { className: "count" });
    const remove = make("button", { type: "button", className: "icon", onclick: () => actions.remove(id) }, "×");
    const list = make("ul", { className: "photos" });
    const empty = make("p", { className: "empty" }, "No photos yet");
    const button = (label, action) =>
      make("button", { type: "button", className: "small", onclick: () => action(id) }, label);
    const buttons = {
      "Add photos": button("Add photos", actions.addFiles),
      "Add a folder": button("Folder", actions.addFolder),
      "Use the camera": button("Camera", actions.useCamera),
    };
    const element = make(
      "li",
      { className: "class" },
      make("div", { className: "class-head" }, swatch, input, count, remove),
      list,
      empty,
      make("div", { className: "row tight class-actions" }, ...Object.values(buttons)),
    );
    element.dataset.id = id;
    return { element, swatch, input, count, remove, list, empty, buttons };
  }

  update(card, one, place) {
    card.swatch.className = `swatch k${place % 8}`;
    if (document.activeElement !== card.input || card.shown !== one.name) card.input.value = one.name;
    card.shown = one.name;
    card.input.setAttribute("aria-label", `Name of class ${place + 1}`);
    card.remove.setAttribute("aria-label", `Delete class ${one.name}`);
    card.remove.title = `Delete class ${one.name}`;
    card.list.setAttribute("aria-label", `Photos of ${one.name}`);
    for (const [label, button] of Object.entries(card.buttons)) {
      button.setAttribute("aria-label", `${label}: ${one.name}`);
    }
    say(card.count, counted(one.photos.length, "photo"));
    card.empty.hidden = one.photos.length > 0;
    arrange(card.list, one.photos.map((photo) => this.thumb(photo)));
  }

  thumb(id) {
    if (!this.thumbs.has(id)) {
      const photo = this.photos.get(id);
      const image = make("img", { src: photo.address, alt: photo.name, title: photo.name, decoding: "async", draggable: false });
      const remove = make(
        "button",
        { type: "button", "aria-label": `Remove ${photo.name}`, onclick: () => this.removePhoto(id) },
        "×",
      );
      this.thumbs.set(id, make("li", {}, image, remove));
    }
    return this.thumbs.get(id);
  }

  /** The keyboard stays near a photo that goes. */
  removePhoto(id) {
    const item = this.thumbs.get(id);
    const near = item.nextElementSibling ?? item.previousElementSibling;
    const card = item.closest(".class");
    this.actions.removePhoto(id);
    (near?.querySelector("button") ?? card.querySelector(".class-actions button"))?.focus();
  }
}
