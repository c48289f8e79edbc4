// Drives a headless Chromium: node browser_driver.mjs CHROMIUM NODE_MODULES FOLDER PAGE
// FOLDER takes the browser's profile, and a picture after each command that failed. PAGE is a module with a page's own commands.
// Reads one command as JSON from each line of standard input and answers each with a line: {"value": ...} or {"error": ...}.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [executablePath, modules, folder, file] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");
const { commandsOf, options } = await import(pathToFileURL(file));
const WAIT_MS = 60_000; // machines are busy with other things

const FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking";
const context = await chromium.launchPersistentContext(`${folder}/profile`, {
  executablePath,
  headless: true,
  args: [...FLAGS.split(" "), "--disable-component-update", "--disable-sync"],
  ...options,
});
const page = context.pages()[0] ?? (await context.newPage());
page.setDefaultTimeout(WAIT_MS);

/** Wait until a condition of the page holds; fail with what `describe` says. */
async function until(condition, describe) {
  const endsAt = Date.now() + WAIT_MS;
  while (!(await condition())) {
    if (Date.now() > endsAt) throw new Error(await describe());
    await page.waitForTimeout(50);
  }
}

const commands = {
  async type({ text, delay }) {
    await page.keyboard.type(text, { delay });
  },
  async press({ keys }) {
    await page.keyboard.press(keys);
  },
  async resize({ width, height }) {
    await page.setViewportSize({ width, height });
  },
  async screenshot({ path }) {
    await page.screenshot({ path });
  },
  ...commandsOf(page, until),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command](given)) ?? null };
  } catch (error) {
    await page.screenshot({ path: `${folder}/failed-${command}.png` });
    answer = { error: `${command}: ${error.message}` };
  }
  console.log(JSON.stringify(answer));
}
await context.close();
