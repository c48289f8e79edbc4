// Drives VS Code in a headless Chromium: node vscode_driver.mjs CHROMIUM NODE_MODULES URL FAILURES
// A command that fails leaves a picture in the folder FAILURES.
// Reads one command as JSON from each line of standard input and answers each with a line: {"value": ...} or {"error": ...}.
import { createRequire } from "node:module";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [executablePath, modules, url, failures] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");
const WAIT_MS = 60_000; // machines are busy with other things

const FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking";
const profile = mkdtempSync(join(tmpdir(), "chromium-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath,
  headless: true,
  args: [...FLAGS.split(" "), "--disable-component-update", "--disable-sync"],
  viewport: { width: 1280, height: 720 },
});
const page = context.pages()[0] ?? (await context.newPage());
page.setDefaultTimeout(WAIT_MS);

const editor = page.locator(".editor-group-container.active .monaco-editor").first();
// The first line of a ghost text is drawn in the cursor's line, the others in a zone below it.
const ghost = editor.locator(".view-lines .ghost-text-decoration, .view-lines .ghost-text-decoration-preview");
const ghostBelow = editor.locator(".suggest-preview-text .view-line");
const statusItem = page.locator(".statusbar-item[id*='completionServer.status']");

// VS Code draws spaces as no-break spaces.
const plain = (text) => text.replaceAll("\u00a0", " ").replaceAll("\u200c", "");

const commands = {
  async open() {
    await page.goto(url);
    await page.locator(".monaco-workbench").waitFor();
    await page.locator(".statusbar-item").first().waitFor();
  },
  async trust() {
    await page.getByRole("button", { name: "Yes, I trust the authors" }).click();
  },
  // Open a file of the workspace and put the cursor at its end.
  async openFile({ name }) {
    await page.locator(`.explorer-folders-view .monaco-list-row[aria-label^="${name}"]`).dblclick();
    await page.locator(`.tab.active[data-resource-name="${name}"]`).waitFor();
    await editor.locator(".view-lines").click();
    await page.keyboard.press("Control+End");
  },
  async run({ title }) {
    await page.keyboard.press("F1");
    const input = page.locator(".quick-input-widget input");
    await input.fill(`>${title}`);
    await page.locator(".quick-input-list .monaco-list-row", { hasText: title }).first().click();
  },
  async type({ text, delay }) {
    await page.keyboard.type(text, { delay });
  },
  async press({ key }) {
    await page.keyboard.press(key);
  },
  // Wait until the ghost text is `text`.
  async ghost({ text }) {
    const endsAt = Date.now() + WAIT_MS;
    let found;
    do {
      const first = (await ghost.allTextContents()).join("");
      found = [first, ...(await ghostBelow.allTextContents())].map(plain).join("\n");
      if (found === text) return;
      await page.waitForTimeout(50);
    } while (Date.now() < endsAt);
    throw new Error(`the ghost text was ${JSON.stringify(found)}, not ${JSON.stringify(text)}`);
  },
  // Wait until `text` stands beside a line, as the new text of a next edit.
  async nextEdit({ text }) {
    const endsAt = Date.now() + WAIT_MS;
    let found;
    do {
      found = await editor.evaluate((node) =>
        [...node.querySelectorAll(".view-lines span")].map((span) => getComputedStyle(span, "::after").content),
      );
      if (found.some((content) => plain(content) === JSON.stringify(text))) return;
      await page.waitForTimeout(50);
    } while (Date.now() < endsAt);
    throw new Error(`no next edit ${JSON.stringify(text)}; beside the lines was ${found.filter((each) => each !== "none")}`);
  },
  async noGhost() {
    await ghost.first().waitFor({ state: "detached" });
  },
  async status({ contains, without }) {
    const item = statusItem.filter({ hasText: contains, hasNotText: without });
    await item.waitFor();
    return plain(await item.innerText());
  },
  // The lines of a list that is open, which is closed then.
  async list({ title }) {
    await page.locator(".quick-input-title", { hasText: title }).waitFor();
    const lines = await page.locator(".quick-input-list .monaco-list-row").allInnerTexts();
    await page.keyboard.press("Escape");
    return lines.map(plain).join("\n");
  },
  async resize({ width, height }) {
    await page.setViewportSize({ width, height });
  },
  async screenshot({ path }) {
    await page.screenshot({ path });
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command](options)) ?? null };
  } catch (error) {
    await page.screenshot({ path: `${failures}/vscode-${command}.png` });
    answer = { error: `${command}: ${error.message}` };
  }
  console.log(JSON.stringify(answer));
}
await context.close();
rmSync(profile, { recursive: true, force: true });
