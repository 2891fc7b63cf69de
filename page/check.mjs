// Fails if the committed page is not what the sources give.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "repper-page-"));
try {
  const built = join(folder, "page.html");
  execFileSync(process.execPath, [join(here, "build.mjs"), built], { stdio: "inherit" });
  const committed = join(here, "..", "src", "repper", "edge", "page.html");
  if (!readFileSync(built).equals(readFileSync(committed))) {
    console.error("src/repper/edge/page.html is not what page/ gives: run `make page` and commit it");
    process.exitCode = 1;
  }
} finally {
  rmSync(folder, { recursive: true });
}
