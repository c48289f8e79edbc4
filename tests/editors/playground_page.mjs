// The commands of the page at `/`. The words of its console that warn are kept, violations of its policy too.
export const options = { viewport: { width: 1280, height: 800 }, colorScheme: "dark" };

export function commandsOf(page, until) {
  const warnings = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") warnings.push(message.text());
  });
  page.on("pageerror", (error) => warnings.push(String(error)));
  return {
    async open({ url }) {
      await page.goto(url);
    },
    async colours({ scheme }) {
      await page.emulateMedia({ colorScheme: scheme });
    },
    evaluate: ({ expression }) => page.evaluate(expression),
    // Not waitForFunction: that evaluates text within the page, which its policy forbids.
    until: ({ expression }) =>
      until(
        () => page.evaluate(expression),
        async () => {
          const shown = await page.evaluate("document.body.innerText");
          return `never came: ${expression}; ${warnings.join("; ")}; the page shows: ${shown}`;
        },
      ),
    warnings: () => warnings,
    async pause({ ms }) {
      await page.waitForTimeout(ms);
    },
  };
}
