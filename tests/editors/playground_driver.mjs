// Drives a headless Chromium: playground_driver.mjs CHROMIUM MODULES PROFILE. Each line of the input is a command as JSON,
// each line of the output its value or its error. The words of the console that warn are kept, CSP violations too.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [chromium, modules, profile] = process.argv.slice(2);
const { chromium: browsers } = createRequire(`${modules}/`)("playwright-core");
const WITHIN_MS = 20_000;

const context = await browsers.launchPersistentContext(profile, {
  executablePath: chromium,
  headless: true,
  viewport: { width: 1280, height: 800 },
  colorScheme: "dark",
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
});
const page = context.pages()[0] ?? (await context.newPage());
page.setDefaultTimeout(WITHIN_MS);
const warnings = [];
page.on("console", (message) => {
  if (message.type() === "error" || message.type() === "warning") warnings.push(message.text());
});
page.on("pageerror", (error) => warnings.push(String(error)));

const commands = {
  open: ({ url }) => page.goto(url),
  colours: ({ scheme }) => page.emulateMedia({ colorScheme: scheme }),
  type: ({ text, delay = 60 }) => page.keyboard.type(text, { delay }),
  press: ({ keys }) => page.keyboard.press(keys),
  evaluate: ({ expression }) => page.evaluate(expression),
  // Not waitForFunction: that evaluates text within the page, which its policy forbids.
  until: async ({ expression }) => {
    const endsMs = Date.now() + WITHIN_MS;
    while (!(await page.evaluate(expression))) {
      if (Date.now() > endsMs) {
        const shown = await page.evaluate("document.body.innerText");
        throw new Error(`never came: ${expression}; ${warnings.join("; ")}; the page shows: ${shown}`);
      }
      await page.waitForTimeout(50);
    }
  },
  screenshot: ({ path }) => page.screenshot({ path }),
  warnings: () => warnings,
  pause: ({ ms }) => page.waitForTimeout(ms),
  focus: () => page.focus(".cm-content"),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  let answer;
  try {
    const value = await commands[command](options);
    answer = { value: ["evaluate", "warnings"].includes(command) ? (value ?? null) : null };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await context.close();
