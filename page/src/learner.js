// The page's side of the worker: promises for its answers, events for what a fit finds.

import { Refused } from "./files/refused.js";

const DELAY = 250; // milliseconds without a change before a head is fitted

export class Learner {
  /** `listen(event)` hears of every result of the latest fit. */
  constructor(source, listen) {
    this.listen = listen;
    this.calls = new Map();
    this.count = 0;
    this.version = 0;
    this.timer = null;
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.worker = new Worker(address);
    URL.revokeObjectURL(address);
    this.worker.onmessage = ({ data }) => this.hear(data);
    this.worker.onerror = (event) => listen({ event: "broken", error: event.message });
  }

  ask(kind, rest, transfer = []) {
    this.count += 1;
    const call = this.count;
    return new Promise((resolve, reject) => {
      this.calls.set(call, { resolve, reject });
      this.worker.postMessage({ call, kind, ...rest }, transfer);
    });
  }

  hear(data) {
    if (data.event) {
      if (data.version === this.version) this.listen(data);
      return;
    }
    const { resolve, reject } = this.calls.get(data.call);
    this.calls.delete(data.call);
    if (data.error === undefined) resolve(data.result);
    else reject(data.refused ? new Refused(data.error) : new Error(data.error));
  }

  /** Fit soon; a fit that is under way ends. `groups` are lists of photo numbers, one per class. */
  fit(groups) {
    this.stop();
    this.timer = setTimeout(() => {
      this.listen({ event: "begun" });
      this.ask("fit", { version: this.version, groups }).catch((error) => {
        this.listen({ event: "broken", error: error.message });
      });
    }, DELAY);
  }

  stop() {
    clearTimeout(this.timer);
    this.version += 1;
  }
}
