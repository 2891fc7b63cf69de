import { softmax } from "../files/head.js";
import { arrange, find, make, percent, say } from "./dom.js";

/** The answer to one photo: the class in large letters, and a bar per class. */
export class AnswerView {
  constructor() {
    this.bars = [];
  }

  /**
   * `head` answers, `unknown` may object; `features` are those of the photo. `places` are the
   * classes' colours.
   */
  show(head, unknown, features, places) {
    if (!head) {
      this.wait("No answer yet", "It needs photos of at least two classes.");
      return;
    }
    if (!features) {
      this.wait("Ready", `It can tell apart: ${head.names.join(", ")}.`);
      return;
    }
    const shares = softmax(head.scores(features));
    const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]);
    const best = order[0];
    const isUnknown = unknown ? unknown.distance(features) > unknown.threshold : false;
    say(find("answer"), isUnknown ? "Unknown" : head.names[best]);
    const sure = `${percent(shares[best])} sure`;
    say(
      find("answer-note"),
      isUnknown ? `It looks unlike the photos of every class. The nearest answer is ${head.names[best]}.` : sure,
    );
    this.draw(head.names, shares, order.length > 8 ? order : [...shares.keys()], places);
    find("bars").classList.toggle("faint", isUnknown);
  }

  wait(title, note) {
    say(find("answer"), title);
    say(find("answer-note"), note);
    arrange(find("bars"), []);
  }

  draw(names, shares, order, places) {
    while (this.bars.length < names.length) {
      const [name, share] = [make("span"), make("span", { className: "share" })];
      const fill = make("div");
      const track = make("div", { className: "track", "aria-hidden": "true" }, fill);
      this.bars.push({ name, share, fill, element: make("li", {}, name, share, track) });
    }
    const rows = order.map((index, row) => {
      const bar = this.bars[row];
      say(bar.name, names[index]);
      say(bar.share, percent(shares[index]));
      bar.fill.className = `fill k${places[index] % 8}`;
      bar.fill.style.width = `${(100 * shares[index]).toFixed(1)}%`;
      return bar.element;
    });
    arrange(find("bars"), rows);
  }
}
