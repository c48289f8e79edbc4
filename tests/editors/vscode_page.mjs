// The commands of VS Code's page.
export const options = { viewport: { width: 1280, height: 720 } };

// VS Code draws spaces as no-break spaces.
const plain = (text) => text.replaceAll("\u00a0", " ").replaceAll("\u200c", "");

export function commandsOf(page, until) {
  const editor = page.locator(".editor-group-container.active .monaco-editor").first();
  // The first line of a ghost text is drawn in the cursor's line, the others in a zone below it.
  const ghost = editor.locator(".view-lines .ghost-text-decoration, .view-lines .ghost-text-decoration-preview");
  const ghostBelow = editor.locator(".suggest-preview-text .view-line");
  const statusItem = page.locator(".statusbar-item[id*='completionServer.status']");

  return {
    async open({ url }) {
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
    // Wait until the ghost text is `text`.
    async ghost({ text }) {
      let found;
      const isThere = async () => {
        const first = (await ghost.allTextContents()).join("");
        found = [first, ...(await ghostBelow.allTextContents())].map(plain).join("\n");
        return found === text;
      };
      await until(isThere, () => `the ghost text was ${JSON.stringify(found)}, not ${JSON.stringify(text)}`);
    },
    // Wait until `text` stands beside a line, as the new text of a next edit.
    async nextEdit({ text }) {
      let found;
      const isThere = async () => {
        found = await editor.evaluate((node) =>
          [...node.querySelectorAll(".view-lines span")].map((span) => getComputedStyle(span, "::after").content),
        );
        return found.some((content) => plain(content) === JSON.stringify(text));
      };
      const beside = () => found.filter((each) => each !== "none");
      await until(isThere, () => `no next edit ${JSON.stringify(text)}; beside the lines was ${beside()}`);
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
  };
}
