// The page in a real browser against the stand-in server: keys in IndexedDB, sessions over reloads, two
// people and one poll.

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { Driver, missing } from "./browser.js";
import { StandIn } from "./stand_in.js";

const ENTER = "\uE007";
const TAB = "\uE004";
let driver, one, two, server;

before(async () => {
  if (missing) return;
  driver = await Driver.start();
  [one, two] = [await driver.browser(), await driver.browser()];
});

after(async () => {
  await driver?.stop();
  server?.close();
});

beforeEach(async () => {
  if (missing) return;
  server?.close();
  server = await new StandIn().listen();
  for (const browser of [one, two]) await browser.open("about:blank");
});

const phase = (browser) => browser.run(() => document.querySelector('[data-testid="connection"]').dataset.phase);
const enter = async (browser, query = "") => {
  await browser.open(server.origin + "/" + query);
  await browser.sees("connection", "live", () => phase(browser));
};
const option = (title) => `[data-testid="option"][data-option="${title}"]`;
const tallies = (browser) =>
  browser.run(() => [...document.querySelectorAll('[data-testid="tally"]')].map(({ dataset }) => `${dataset.option}: ${dataset.votes}`));
const myVote = (browser) =>
  browser.run(() => [...document.querySelectorAll('[data-testid="my-vote"]')].filter((mark) => !mark.hidden).map((mark) => mark.dataset.option));
const did = (browser) => browser.run(() => document.querySelector('[data-testid="identity"]').dataset.did);
const draft = (browser) => browser.run(() => document.querySelector('[data-testid="draft"]').value);
const settled = (browser) => browser.sees("settled", ["settled"], () => browser.texts("panel-settled"));

test("two people vote: the tally is shared, each sees only the own mark", { skip: missing }, async () => {
  await enter(one);
  await enter(two);
  assert.notEqual(await did(one), await did(two));
  await one.click(option("Green Kitchen"));
  for (const browser of [one, two]) {
    await browser.sees("tally", ["Ramen at Kumo: 0", "Green Kitchen: 1", "Soup & bread: 0"], () => tallies(browser));
  }
  await two.click(option("Green Kitchen"));
  for (const browser of [one, two]) await browser.sees("total", ["2 votes"], () => browser.texts("total"));
  await two.click(option("Soup & bread"));
  for (const browser of [one, two]) {
    await browser.sees("tally", ["Ramen at Kumo: 0", "Green Kitchen: 1", "Soup & bread: 1"], () => tallies(browser));
  }
  assert.deepEqual(await myVote(one), ["Green Kitchen"]);
  assert.deepEqual(await myVote(two), ["Soup & bread"]);
  await one.click(option("Green Kitchen"));
  await two.sees("a vote taken back", "Green Kitchen: 0", async () => (await tallies(two))[1]);
  await one.sees("no mark", [], () => myVote(one));
});

test("everything works from the keyboard, and focus survives what arrives", { skip: missing }, async () => {
  await enter(one);
  await one.run(() => document.querySelector('[data-testid="draft"]').focus());
  await one.press("Dosa Corner");
  await one.press(ENTER);
  await one.sees("the new option", 4, async () => (await one.texts("option")).length);
  await one.sees("an empty field", "", () => draft(one));
  assert.equal(await one.run(() => document.activeElement.id), "draft");
  await one.run((selector) => document.querySelector(selector).focus(), option("Dosa Corner"));
  await one.press(" ");
  await one.sees("the vote", ["Dosa Corner"], () => myVote(one));
  assert.equal(await one.run(() => document.activeElement.dataset.option), "Dosa Corner");
  await one.press(TAB);
  assert.equal(await one.run(() => document.activeElement.id), "draft");
});

test("what one person types stays with the session: not the other person's, not another tab's, back after a reload", { skip: missing }, async () => {
  await enter(one);
  await enter(two);
  await one.run(() => document.querySelector('[data-testid="draft"]').focus());
  await one.press("half a wo");
  await settled(one);
  const [person, session] = [await did(one), await one.texts("session-id")];
  await one.reload();
  await one.sees("the draft", "half a wo", () => draft(one));
  assert.equal(await did(one), person, "the same person");
  assert.deepEqual(await one.texts("session-id"), session, "the same session");
  assert.equal(await draft(two), "");

  const first = await one.currentTab();
  await one.newTab();
  await enter(one);
  assert.equal(await did(one), person, "one profile is one person");
  assert.notDeepEqual(await one.texts("session-id"), session, "every tab is a session");
  assert.equal(await draft(one), "");
  await one.call("DELETE", "/window");
  await one.switchTo(first);
});

test("a vote belongs to the person: it shows in every tab of the profile, and not under another name", { skip: missing }, async () => {
  await enter(one);
  await one.click(option("Ramen at Kumo"));
  await one.sees("the vote", ["Ramen at Kumo"], () => myVote(one));
  const first = await one.currentTab();
  await one.newTab();
  await enter(one);
  await one.sees("the same person's other tab", ["Ramen at Kumo"], () => myVote(one));
  await enter(one, "?as=visitor");
  assert.deepEqual(await myVote(one), []);
  await one.click(option("Soup & bread"));
  await one.sees("the visitor's vote", ["Soup & bread"], () => myVote(one));
  await one.call("DELETE", "/window");
  await one.switchTo(first);
  await one.sees("the tab behind followed", ["Ramen at Kumo: 1", "Green Kitchen: 0", "Soup & bread: 1"], () => tallies(one));
  assert.deepEqual(await myVote(one), ["Ramen at Kumo"]);
});

test("a duplicated tab becomes a session of its own and the first one goes on", { skip: missing }, async () => {
  await enter(one);
  const session = await one.texts("session-id");
  const first = await one.currentTab();
  await one.run(() => void window.open(location.href));
  const [second] = (await one.tabs()).filter((tab) => tab !== first);
  await one.switchTo(second);
  await one.sees("connection", "live", () => phase(one));
  assert.notDeepEqual(await one.texts("session-id"), session);
  await one.call("DELETE", "/window");
  await one.switchTo(first);
  assert.equal(await phase(one), "live");
  assert.deepEqual(await one.texts("session-id"), session);
});

test("a click whose answer the network swallowed happens once", { skip: missing }, async () => {
  await enter(one);
  await enter(two);
  server.mute = true;
  await one.click(option("Ramen at Kumo"));
  await one.sees("the commit arrived", true, async () => [...server.sessions.values()].some(({ commits }) => commits.size > 0));
  server.cut();
  server.mute = false;
  for (const browser of [one, two]) {
    await browser.sees("connection", "live", () => phase(browser));
    await browser.sees("tally", "Ramen at Kumo: 1", async () => (await tallies(browser))[0]);
  }
  await settled(one);
  assert.equal([...server.sessions.values()].reduce((sum, { commits }) => sum + commits.size, 0), 1);
});

test("a refusal and a failed handler are told in plain words with the error's name", { skip: missing }, async () => {
  await enter(one);
  server.refusal = { name: "AuthorizationError", message: "Principal x lacks WRITE on space y" };
  await one.click(option("Ramen at Kumo"));
  const problem = "Your vote for “Ramen at Kumo” is not allowed for you here. AuthorizationError: Principal x lacks WRITE on space yDismiss";
  await one.sees("the refusal", [problem], () => one.texts("problem"));
  assert.deepEqual(await myVote(one), []);
  await one.click('[data-testid="dismiss"]');
  await one.sees("no problem", [], () => one.texts("problem"));

  server.refusal = undefined;
  await one.run(() => document.querySelector('[data-testid="draft"]').focus());
  await one.press("Green Kitchen" + ENTER);
  const failure = "Adding “Green Kitchen” did not work. HandlerError: Green Kitchen is on the list alreadyDismiss";
  await one.sees("the handler's error", [failure], () => one.texts("problem"));
});

test("the panel shows the seq, the watermark and this session's rows with their scopes", { skip: missing }, async () => {
  await enter(one);
  await one.click(option("Ramen at Kumo"));
  await settled(one);
  const rows = await one.run(() =>
    [...document.querySelectorAll('[data-testid="panel-row"]')].map((row) => [row.querySelector(".doc").textContent, row.dataset.scope, row.dataset.cover, row.dataset.state]),
  );
  assert.deepEqual(rows, [
    ["tally", "space", "derived", "present"],
    ["options", "space", "authored", "present"],
    ["piece", "space", "authored", "present"],
    ["watermark", "space", "derived", "present"],
    ["my vote", "user", "derived", "present"],
    ["draft", "session", "", "never written"],
  ]);
  assert.deepEqual(await one.texts("panel-seq"), [String(server.head)]);
  assert.deepEqual(await one.texts("panel-watermark"), [String(server.head - 1)]);
});

test("nothing on the page fails, logs an error or reaches for another host", { skip: missing }, async () => {
  await enter(one);
  await one.click(option("Ramen at Kumo"));
  await settled(one);
  const logged = await one.call("POST", "/se/log", { type: "browser" });
  assert.deepEqual(logged.filter(({ level }) => level === "SEVERE"), []);
  const hosts = await one.run(() => performance.getEntriesByType("resource").map(({ name }) => new URL(name).host));
  assert.ok(hosts.length >= 12);
  assert.deepEqual([...new Set(hosts)], [new URL(server.origin).host]);
});
