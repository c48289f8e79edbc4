/** Dark or light: the system's, until the user switches. */
const KEY = "playground-theme";
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** Apply the theme, and let a button switch it. */
export function followTheme(button: HTMLElement): void {
  const apply = () => {
    const theme = localStorage.getItem(KEY) ?? (DARK.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.setAttribute("aria-pressed", String(theme === "light"));
  };
  button.addEventListener("click", () => {
    localStorage.setItem(KEY, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    apply();
  });
  DARK.addEventListener("change", apply);
  apply();
}
