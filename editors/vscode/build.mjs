// Bundle the extension into dist/extension.js, and the licences of what it contains into dist/NOTICES.txt.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";
import { noticesOf } from "./notices.mjs";

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

writeFileSync("dist/NOTICES.txt", noticesOf(Object.keys(metafile.inputs), readFileSync("../../LICENSE", "utf8")));
