// Takes pictures of the page in its states, in light and dark, wide and narrow:
// `node test/screenshots.js <folder>`.

import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Driver, missing } from "./browser.js";
import { StandIn } from "./stand_in.js";

const folder = process.argv[2];

async function takeAll() {
  if (missing) throw new Error(missing);
  await mkdir(folder, { recursive: true });
  const server = await new StandIn().listen();
  const driver = await Driver.start();
  try {
    await scene(server, await driver.browser(), await driver.browser());
  } finally {
    await driver.stop();
    server.close();
  }
}

const phase = (browser) => browser.run(() => document.querySelector('[data-testid="connection"]').dataset.phase);
const vote = (browser, title) => browser.click(`[data-testid="option"][data-option="${title}"]`);
const type = async (browser, text) => {
  await browser.run(() => document.querySelector('[data-testid="draft"]').focus());
  await browser.press(text);
};

async function picture(browser, name) {
  for (const scheme of ["light", "dark"]) {
    await browser.devtools("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
    for (const [size, width, height] of [["wide", 1200, 860], ["narrow", 390, 1180]]) {
      await browser.devtools("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: size === "narrow" });
      await new Promise((resolve) => setTimeout(resolve, 1500)); // lets colours and bars come to rest
      await writeFile(join(folder, `${name}-${scheme}-${size}.png`), await browser.screenshot());
    }
  }
}

async function scene(server, one, two) {
  for (const browser of [one, two]) {
    await browser.open(server.origin);
    await browser.sees("connection", "live", () => phase(browser));
  }
  await vote(two, "Green Kitchen");
  await two.open(server.origin + "/?as=visitor");
  await two.sees("connection", "live", () => phase(two));
  await vote(two, "Green Kitchen");
  await type(one, "Dosa Corner\uE007");
  await one.sees("the option", 4, async () => (await one.texts("option")).length);
  await vote(one, "Soup & bread");
  await type(one, "The noodle place by the ri");
  await one.sees("settled", ["settled"], () => one.texts("panel-settled"));
  await picture(one, "voted");

  server.refusal = { name: "AuthorizationError", message: `Principal did:key:z6Mk… lacks WRITE on space ${server.sessions.values().next().value.space}` };
  await vote(one, "Ramen at Kumo");
  await one.sees("a problem", 1, async () => (await one.texts("problem")).length);
  server.http.closeAllConnections();
  server.http.close();
  server.cut();
  await one.sees("connection", "waiting", () => phase(one));
  await vote(one, "Ramen at Kumo");
  await picture(one, "troubled");
}

if (folder === undefined) console.error("Name a folder for the pictures.");
else await takeAll();
