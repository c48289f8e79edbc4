// Bundle the extension into dist/extension.js, and the licences of what it contains into dist/NOTICES.txt.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const { metafile } = await build({
  entryPoints: ["src/extension.ts"],
  outfile: "dist/extension.js",
  bundle: true,
  platform: "node",
  format: "cjs",
  target: "node20",
  external: ["vscode"],
  minify: true,
  legalComments: "none", // NOTICES.txt has them all
  logLevel: "warning",
  metafile: true,
});

const inPackage = /^(.*node_modules\/(@[^/]+\/)?[^/]+)\//;
const folders = new Set(Object.keys(metafile.inputs).flatMap((path) => inPackage.exec(path)?.[1] ?? []));
const notices = [...folders].sort().map((folder) => {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  const text = file ? readFileSync(join(folder, file), "utf8") : "";
  return `${name} ${version}, ${license}\n\n${text.trim()}\n`;
});
writeFileSync("dist/NOTICES.txt", notices.join(`\n${"-".repeat(80)}\n\n`));
