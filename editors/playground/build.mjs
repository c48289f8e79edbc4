// Builds the page into the folder in OUT, or else into the one that the server ships, with the licences of what is in it.
import { copyFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const out = process.env.OUT ?? "../../completion_server/api/http/playground/static";
const { metafile } = await build({
  entryPoints: ["src/main.ts", "src/page.css"],
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none", // they are in licenses.txt
  metafile: true,
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join("src", name), join(out, name));

const folders = Object.keys(metafile.inputs).map((path) => /^node_modules\/(@[^/]+\/)?[^/]+/.exec(path)?.[0]);
const licenses = [...new Set(folders.filter(Boolean))].sort().map((folder) => {
  const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = ["LICENSE", "LICENSE.md"].map((each) => join(folder, each)).find(existsSync);
  if (!file) throw new Error(`${name} has no licence`);
  return `${name} ${version}\n\n${readFileSync(file, "utf8").trim()}\n`;
});
writeFileSync(join(out, "licenses.txt"), licenses.join(`\n${"-".repeat(72)}\n\n`));
