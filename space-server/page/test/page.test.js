// The page's own books: the list of served files, the types, the reading of the poll's documents.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { tallied } from "../poll.js";
import { FILES } from "./stand_in.js";

const PAGE = new URL("../", import.meta.url);
const read = (file) => readFileSync(new URL(file, PAGE), "utf8");

test("the README lists exactly the files that are served, and they are all the files there are", () => {
  const listed = [...read("README.md").matchAll(/^\| `([a-z]+\.(?:html|css|js))` \|/gm)].map(([, file]) => file);
  assert.deepEqual(listed, FILES);
  const present = readdirSync(PAGE).filter((file) => /\.(html|css|js)$/.test(file));
  assert.deepEqual(present.sort(), [...FILES].sort());
});

test("every module imports only files that are served", () => {
  for (const file of FILES.filter((name) => name.endsWith(".js"))) {
    for (const [, imported] of read(file).matchAll(/^import .* from "(.*)";$/gm)) {
      assert.ok(FILES.includes(imported.replace("./", "")), `${file} imports ${imported}`);
    }
  }
});

test("every test id in the README is on the page or made by its scripts", () => {
  const source = FILES.map(read).join("\n");
  const ids = [...read("README.md").matchAll(/^\| `data-testid="([a-z-]+)"/gm)].map(([, id]) => id);
  assert.ok(ids.length >= 18, `${ids.length} ids`);
  for (const id of ids) assert.match(source, new RegExp(`testid(?:=|: | = )"${id}"`), id);
});

const compiler = spawnSync("tsc", ["--version"]).error === undefined;
test("the type checker finds nothing", { skip: compiler ? false : "tsc is not installed" }, () => {
  const { status, stdout } = spawnSync("tsc", ["-p", PAGE.pathname], { encoding: "utf8" });
  assert.equal(stdout, "");
  assert.equal(status, 0);
});

test("options come in their order with the votes of the tally; what has no shape counts as absent", () => {
  const tally = [{ option: "b", votes: 2 }, { option: "elsewhere", votes: 9 }, { option: "a", votes: "many" }, null];
  assert.deepEqual(tallied(["a", "b", "a", "", 7], tally, "b"), [
    { title: "a", votes: 0, mine: false },
    { title: "b", votes: 2, mine: true },
  ]);
  assert.deepEqual(tallied(undefined, undefined, undefined), []);
  assert.deepEqual(tallied(["constructor"], [{ option: "constructor", votes: 1 }], null), [{ title: "constructor", votes: 1, mine: false }]);
});
