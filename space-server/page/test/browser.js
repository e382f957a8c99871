// Drives a headless Chromium through chromedriver's plain HTTP interface: as much of WebDriver as the
// browser tests use. Every browser is a profile of its own, so two of them are two people.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createServer } from "node:net";

const DRIVER = process.env.CHROMEDRIVER ?? "/usr/bin/chromedriver";
const BROWSER = process.env.CHROMIUM ?? "/usr/bin/chromium";
const ELEMENT = "element-6066-11e4-a52e-4f735466cecf";

/** Why there can be no browser test here, or false. */
export const missing = [DRIVER, BROWSER].every((file) => existsSync(file)) ? false : `${DRIVER} or ${BROWSER} is not installed`;

export class Driver {
  static async start() {
    const port = await freePort();
    const child = spawn(DRIVER, [`--port=${port}`], { stdio: "ignore" });
    const driver = new Driver(child, `http://127.0.0.1:${port}`);
    await until(() => driver.call("GET", "/status").then(({ ready }) => ready, () => false));
    return driver;
  }

  constructor(child, origin) {
    this.child = child;
    this.origin = origin;
    this.browsers = [];
  }

  async browser() {
    const args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"];
    const { sessionId } = await this.call("POST", "/session", {
      capabilities: { alwaysMatch: { browserName: "chrome", "goog:chromeOptions": { binary: BROWSER, args } } },
    });
    const browser = new Browser(this, `/session/${sessionId}`);
    this.browsers.push(browser);
    return browser;
  }

  async call(method, path, body) {
    const answer = await fetch(this.origin + path, { method, body: body && JSON.stringify(body) });
    const { value } = await answer.json();
    if (!answer.ok) throw Object.assign(new Error(`${value.error}: ${value.message.split("\n")[0]}`), { code: value.error });
    return value;
  }

  async stop() {
    for (const browser of this.browsers) await browser.call("DELETE", "").catch(() => undefined);
    this.child.kill();
  }
}

class Browser {
  constructor(driver, path) {
    this.driver = driver;
    this.path = path;
  }

  call(method, path, body) {
    return this.driver.call(method, this.path + path, body);
  }

  open(url) {
    return this.call("POST", "/url", { url });
  }

  reload() {
    return this.call("POST", "/refresh", {});
  }

  /** Runs a function in the page and returns what it returns. */
  run(script, ...args) {
    return this.call("POST", "/execute/sync", { script: `return (${script})(...arguments)`, args });
  }

  devtools(cmd, params) {
    return this.call("POST", "/goog/cdp/execute", { cmd, params });
  }

  /** Text of every element with the test id. */
  texts(testid) {
    return this.run((id) => [...document.querySelectorAll(`[data-testid="${id}"]`)].map((node) => node.textContent.trim()), testid);
  }

  async click(selector) {
    const found = await this.call("POST", "/element", { using: "css selector", value: selector });
    await this.call("POST", `/element/${found[ELEMENT]}/click`, {});
  }

  /** Presses keys wherever the focus is. */
  async press(text) {
    const actions = [...text].flatMap((value) => [{ type: "keyDown", value }, { type: "keyUp", value }]);
    await this.call("POST", "/actions", { actions: [{ type: "key", id: "keyboard", actions }] });
  }

  async tabs() {
    return this.call("GET", "/window/handles");
  }

  async newTab() {
    const { handle } = await this.call("POST", "/window/new", { type: "tab" });
    await this.switchTo(handle);
    return handle;
  }

  switchTo(handle) {
    return this.call("POST", "/window", { handle });
  }

  currentTab() {
    return this.call("GET", "/window");
  }

  async screenshot() {
    return Buffer.from(await this.call("GET", "/screenshot"), "base64");
  }

  /** Waits until the page's answer is what is expected. */
  async sees(what, expected, look) {
    let last;
    const same = async () => JSON.stringify((last = await look())) === JSON.stringify(expected);
    await until(same).catch(() => {
      throw new Error(`${what}: expected ${JSON.stringify(expected)}, saw ${JSON.stringify(last)}`);
    });
  }
}

/** Waits for the condition; the limit is there to end a test that hangs, and nothing measures it. */
async function until(condition) {
  for (const end = Date.now() + 20_000; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 20))) {
    if (await condition()) return;
  }
  throw new Error("waited in vain");
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
